/// @file
/// Exercises as they stand in the repository.
#include "exercise_file.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <regex>
#include <sstream>

#include "failure.h"

namespace course {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string trimmed(const std::string& text) {
  const char* space = " \t\r\n";
  const size_t first = text.find_first_not_of(space);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(space) - first + 1);
}

// What stands below one heading: prose, and the fenced block if there is one.
struct Section {
  std::string name, prose, block;
  bool has_block = false;
};

// The first section is what stands below the title.
std::vector<Section> sections_of(const std::vector<std::string>& lines) {
  std::vector<Section> sections(1);
  bool in_block = false;
  for (const std::string& line : lines) {
    Section& section = sections.back();
    const bool body = sections.size() > 1;  // the student's text keeps its blocks
    if (line.starts_with("```")) {
      in_block = !in_block;
      section.has_block = true;
      if (!body) section.prose += line + "\n";
    } else if (!in_block && line.starts_with("## ")) {
      sections.push_back({trimmed(line.substr(3)), "", ""});
    } else {
      (in_block && body ? section.block : section.prose) += line + "\n";
    }
  }
  for (Section& section : sections) section.prose = trimmed(section.prose);
  return sections;
}

// "`text`" without its backquotes.
std::string unquoted(const std::string& text) {
  const bool quoted = text.size() > 2 && text.front() == '`' && text.back() == '`';
  return quoted ? text.substr(1, text.size() - 2) : text;
}

// One line of a marker, if it is one: its name.
std::string marker_name(const std::string& line) {
  const std::string text = trimmed(line);
  if (!text.starts_with("//! [") || !text.ends_with("]")) return "";
  return text.substr(5, text.size() - 6);
}

// The indices of a region's two markers.
std::pair<size_t, size_t> find_region(const std::vector<std::string>& lines, const std::string& name) {
  std::vector<size_t> at;
  for (size_t i = 0; i < lines.size(); ++i)
    if (marker_name(lines[i]) == name) at.push_back(i);
  if (at.size() != 2)
    throw Failure("The region " + name + " needs two marker lines '//! [" + name + "]', and the file has " +
                  std::to_string(at.size()) + ".");
  return {at[0], at[1]};
}

}  // namespace

const char* Exercise::kind_name() const {
  return kind == Kind::predict ? "Predict" : kind == Kind::fill_in ? "Fill in" : "Bug hunt";
}

Exercise parse_exercise(const std::string& markdown, const fs::path& file) {
  auto need = [&](bool right, const std::string& what) {
    if (!right) throw Failure("The exercise " + file.string() + " " + what + ".");
  };
  std::vector<std::string> lines = lines_of(markdown);
  std::smatch title;
  const std::regex form(R"(# (\d\d\.\d+) (Predict|Fill in|Bug hunt): (.+))");
  need(!lines.empty() && std::regex_match(lines[0], title, form),
       "does not begin with '# 10.1 Predict: title' (or Fill in, or Bug hunt)");
  Exercise exercise;
  exercise.file = file;
  exercise.id = title[1];
  exercise.kind = title[2] == "Predict"   ? Exercise::Kind::predict
                  : title[2] == "Fill in" ? Exercise::Kind::fill_in
                                          : Exercise::Kind::bug_hunt;
  exercise.title = title[3];

  lines.erase(lines.begin());
  const std::vector<Section> sections = sections_of(lines);
  exercise.text = sections[0].prose;
  const bool predict = exercise.kind == Exercise::Kind::predict;
  std::string answer;
  for (auto section = sections.begin() + 1; section != sections.end(); ++section) {
    const auto& [name, prose, block, has_block] = *section;
    auto take = [&](std::string& where, const std::string& value) {
      need(where.empty(), "has two sections " + name);
      need(!trimmed(value).empty(), "has an empty section " + name);
      where = value;
    };
    if (name == "Hint")
      take(exercise.hint, prose);
    else if (predict && name == "Run")
      take(exercise.run, unquoted(prose));
    else if (predict && name == "Answer")
      take(answer, block);
    else if (!predict && name == "Region")
      take(exercise.region, unquoted(prose));
    else if (!predict && name == "Unsolved")
      take(exercise.unsolved, block);
    else if (!predict && name == "Expect")
      take(exercise.expect, unquoted(prose));
    else if (name == "Wrong") {
      need(!prose.empty() && has_block, "has a section Wrong without a sentence or without a block");
      exercise.wrong.push_back({prose, block});
    } else
      need(false, "has a section '" + name + "', which its kind does not know");
  }
  need(!exercise.text.empty(), "says nothing to the student");
  need(!exercise.hint.empty(), "has no section Hint");
  need(exercise.wrong.size() >= 2, "has fewer than two sections Wrong");
  if (predict) {
    need(!exercise.run.empty() && !answer.empty(), "needs the sections Run and Answer");
    exercise.answer = parse_numbers(answer);
  } else {
    need(!exercise.region.empty() && !exercise.unsolved.empty() && !exercise.expect.empty(),
         "needs the sections Region, Unsolved and Expect");
  }
  return exercise;
}

std::vector<Exercise> read_exercises(const fs::path& step_folder) {
  std::vector<Exercise> exercises;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(step_folder / "exercises", none)) {
    if (entry.path().extension() != ".md") continue;
    Exercise exercise = parse_exercise(read_text(entry.path()), entry.path());
    exercise.step = step_folder.filename();
    const std::string name = entry.path().filename(), number = exercise.id.substr(3);
    if (exercise.id.substr(0, 2) != exercise.step.substr(0, 2) || !name.starts_with(number + "_"))
      throw Failure("The exercise " + entry.path().string() + " calls itself " + exercise.id +
                    "; its file and folder say otherwise.");
    exercises.push_back(exercise);
  }
  auto number = [](const Exercise& e) { return std::stoi(e.id.substr(3)); };
  std::ranges::sort(exercises, {}, number);
  if (const auto twice = std::ranges::adjacent_find(exercises, {}, number); twice != exercises.end())
    throw Failure("Two exercises call themselves " + twice->id + ".");
  return exercises;
}

Numbers parse_numbers(const std::string& text) {
  Numbers numbers;
  for (const std::string& line : lines_of(text)) {
    const std::string content = trimmed(line);
    if (content.empty() || content[0] == '#') continue;
    const size_t equals = content.find('=');
    const std::string name = trimmed(content.substr(0, equals));
    if (equals == std::string::npos || name.empty())
      throw Failure("The line '" + content + "' should be 'name = number'.");
    numbers.emplace_back(name, trimmed(content.substr(equals + 1)));
  }
  return numbers;
}

std::string region_of(const std::string& source, const std::string& name) {
  const std::vector<std::string> lines = lines_of(source);
  const auto [first, last] = find_region(lines, name);
  std::string text;
  for (size_t i = first + 1; i < last; ++i)
    if (marker_name(lines[i]).empty()) text += lines[i] + "\n";
  return text;
}

std::string student_file(const Exercise& exercise, const std::string& attention, const std::string& block) {
  const std::vector<std::string> lines = lines_of(attention);
  const auto [first, last] = find_region(lines, exercise.region);
  const std::string indent = lines[first].substr(0, lines[first].find('/'));
  const bool marked = exercise.kind == Exercise::Kind::fill_in;
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i == first) {
      if (marked) text += indent + "// Exercise " + exercise.id + ": your lines begin here.\n";
      text += block;
      if (marked) text += indent + "// Exercise " + exercise.id + ": your lines end here.\n";
    }
    if ((i > first && i < last) || !marker_name(lines[i]).empty()) continue;
    text += lines[i] + "\n";
  }
  return text;
}

std::string attention_of(const Exercise& exercise) {
  return read_text(exercise.file.parent_path().parent_path() / "attention.cu");
}

std::string read_text(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream || !fs::is_regular_file(file)) throw Failure("The file " + file.string() + " cannot be read.");
  return text;
}

}  // namespace course
