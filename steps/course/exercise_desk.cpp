/// @file
/// The student's desk.
#include "exercise_desk.h"

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>

#include "failure.h"
#include "paths.h"
#include "steps.h"
#include "units.h"

namespace course {
namespace {

namespace fs = std::filesystem;

// 64 bits of FNV-1a, in hexadecimal.
std::string fingerprint(const std::string& text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001B3u;
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(hash));
  return hex;
}

void write_text(const fs::path& file, const std::string& text) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  stream.close();
  if (!stream) throw Failure("The file " + file.string() + " cannot be written.");
}

std::string shown(const fs::path& file) {
  const fs::path inside = file.lexically_relative(source_dir());
  return inside.empty() || *inside.begin() == ".." ? file.string() : inside.string();
}

// The number of the first line that holds a text; 1 if none does.
size_t line_of(const std::string& source, const std::string& text) {
  const size_t at = source.find(text);
  return at == std::string::npos
             ? 1
             : 1 + static_cast<size_t>(std::count(source.begin(), source.begin() + at, '\n'));
}

std::string title_of(const Exercise& e) { return e.id + " " + e.kind_name() + ": " + e.title; }

// What the numbers of a predict exercise are taken from.
std::string source_of(const Exercise& e) {
  if (e.run.starts_with("run ")) return "./learn " + e.run;
  return e.run;
}

std::string unsolved_numbers(const Exercise& e) {
  std::string text = "# " + e.title + "\n# " + source_of(e) + "\n# A number, or a sum like 2 * (256 + 64).\n";
  for (const auto& [name, unused] : e.answer) text += name + " = ?\n";
  return text;
}

const std::string command = "./learn exercise ";

}  // namespace

ExerciseDesk::ExerciseDesk(fs::path my, std::vector<Exercise> exercises)
    : my_(std::move(my)), exercises_(std::move(exercises)) {
  std::ifstream stream(my_ / "progress.json");
  const auto progress = nlohmann::json::parse(stream, nullptr, false);
  if (!progress.is_object()) return;  // absent or damaged: nothing is known to be solved
  for (const auto& [id, hash] : progress.items())
    if (hash.is_string()) progress_[id] = hash.get<std::string>();
}

fs::path ExerciseDesk::file_of(const Exercise& e) const {
  return my_ / e.id / (e.is_code() ? "attention.cu" : "answer.txt");
}

const Exercise& ExerciseDesk::find(const std::string& id) const {
  std::string ids;
  for (const Exercise& e : exercises_) {
    if (e.id == id) return e;
    ids += (ids.empty() ? "" : ", ") + e.id;
  }
  if (ids.empty()) throw Failure("There are no exercises: no step was built, or none has any.");
  throw Failure("There is no exercise '" + id + "'; the exercises are " + ids + ".");
}

bool ExerciseDesk::solved(const Exercise& e) const {
  const auto known = progress_.find(e.id);
  std::error_code none;
  return known != progress_.end() && fs::is_regular_file(file_of(e), none) &&
         fingerprint(read_text(file_of(e))) == known->second;
}

std::string ExerciseDesk::state(const Exercise& e) const {
  if (solved(e)) return "solved";
  std::error_code none;
  if (!fs::exists(file_of(e), none)) return "";
  return progress_.contains(e.id) ? "changed since it was right" : "begun";
}

std::string ExerciseDesk::next() const {
  for (const Exercise& e : exercises_)
    if (!solved(e)) return e.id;
  return "";
}

void ExerciseDesk::lay_out(const Exercise& e) const {
  write_text(file_of(e), e.is_code() ? student_file(e, attention_of(e), e.unsolved) : unsolved_numbers(e));
}

int ExerciseDesk::show(const std::string& id, std::ostream& out) {
  const Exercise& e = find(id);
  const fs::path file = file_of(e);
  std::error_code none;
  if (!fs::exists(file, none)) lay_out(e);
  out << title_of(e) << "\n" << shown(e.file) << "\n\n" << e.text << "\n\n";
  if (e.kind == Exercise::Kind::fill_in)
    out << "Fill in:   " << shown(file) << ":"
        << line_of(read_text(file), "// Exercise " + e.id + ": your lines begin")
        << ", between the two lines that say Exercise " << e.id << "\n";
  else if (e.kind == Exercise::Kind::bug_hunt)
    out << "Repair:    " << shown(file) << "; the bug is anywhere in the file\n";
  else
    out << "Write the numbers into " << shown(file) << "\n";
  out << "Then:      " << command << "check " << e.id << "\n"
      << "A hint:    " << command << "hint " << e.id << "\n";
  return exit_right;
}

int ExerciseDesk::list(std::ostream& out) const {
  std::string step;
  int done = 0;
  for (const Exercise& e : exercises_) {
    if (e.step != step) out << (step.empty() ? "" : "\n") << e.step << "\n";
    step = e.step;
    done += solved(e);
    const std::string now = state(e);
    out << "  " << pad_right(e.id, 7) << pad_right(e.kind_name(), 10)
        << (now.empty() ? e.title : pad_right(e.title, 48) + now) << "\n";
  }
  out << "\n" << done << " of " << exercises_.size() << " are solved.";
  if (const std::string id = next(); !id.empty()) out << " Next: " << command << id;
  out << "\n";
  return exit_right;
}

int ExerciseDesk::check(const std::string& id, std::ostream& out, const ExerciseLimits& limits) {
  const Exercise& e = find(id);
  const fs::path file = file_of(e);
  std::error_code none;
  if (!fs::exists(file, none))
    throw Failure("There is no " + shown(file) + " yet; " + command + id + " makes it.");
  const ExerciseVerdict verdict = check_exercise(e, file, my_ / ".build", limits);
  if (!verdict.right) {
    progress_.erase(e.id);
    out << e.id << " is not right yet. " << verdict.message << "\nA hint: " << command << "hint " << e.id
        << "\n";
    return exit_wrong;
  }
  progress_[e.id] = fingerprint(read_text(file));
  write_text(my_ / "progress.json", nlohmann::json(progress_).dump(2) + "\n");
  out << e.id << " is right. For comparison: " << command << "answer " << e.id << "\n";
  if (const std::string following = next(); following.empty())
    out << "All exercises are solved.\n";
  else
    out << "Next: " << title_of(find(following)) << " (" << command << following << ")\n";
  return exit_right;
}

int ExerciseDesk::hint(const std::string& id, std::ostream& out) const {
  out << id << ": " << find(id).hint << "\n";
  return exit_right;
}

int ExerciseDesk::answer(const std::string& id, bool show_anyway, std::ostream& out) const {
  const Exercise& e = find(id);
  if (!show_anyway && !solved(e))
    throw Failure(id + " is not solved yet; " + command + "answer " + id +
                  " --show prints its answer all the same.");
  if (!e.is_code()) {
    out << source_of(e) << "\n";
    for (const auto& [name, number] : e.answer) out << name << " = " << number << "\n";
    return exit_right;
  }
  const std::string attention = attention_of(e);
  out << "steps/" << e.step << "/attention.cu:" << line_of(attention, "//! [" + e.region + "]") + 1 << "\n"
      << region_of(attention, e.region);
  return exit_right;
}

int ExerciseDesk::reset(const std::string& id, std::ostream& out) {
  const Exercise& e = find(id);
  const fs::path file = file_of(e);
  fs::path old = file;
  old += ".bak";
  std::error_code none;
  if (fs::exists(file, none)) {
    std::error_code error;
    fs::rename(file, old, error);
    if (error)
      throw Failure("The file " + file.string() + " cannot be kept as " + old.string() + ": " +
                    error.message() + ".");
    out << "Your file is kept as " << shown(old) << ".\n";
  }
  lay_out(e);
  out << shown(file) << " is as it was at the beginning.\n";
  return exit_right;
}

ExerciseDesk own_desk() {
  std::vector<Exercise> all;
  for (const Step& step : all_steps())
    for (Exercise& e : read_exercises(step.folder())) all.push_back(std::move(e));
  return ExerciseDesk(source_dir() / "my", std::move(all));
}

}  // namespace course
