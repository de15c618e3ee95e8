/// @file
/// Plain-text tables.
#include "table.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "units.h"

namespace course {
namespace {

constexpr size_t page_width = 120;

// Breaks text between words into lines of at most `width` characters; all but the first are indented.
std::string wrapped(const std::string& text, size_t width, size_t indent) {
  std::istringstream words(text);
  std::string result, line;
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      result += line + "\n" + std::string(indent, ' ');
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return result + line;
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  for (Column& c : columns_) c.width = std::max({c.width, c.above.size(), c.title.size()});
}

void Table::print(const std::vector<std::string>& cells) const {
  std::string line;
  size_t used = 0;  // by all columns but the last
  for (size_t i = 0; i < columns_.size(); ++i) {
    const std::string& cell = i < cells.size() ? cells[i] : "";
    if (i + 1 == columns_.size() && columns_[i].left && used + 20 < page_width) {
      line += (i ? "  " : "") + wrapped(cell, page_width - used - 2, used + 2);
      break;
    }
    line += (i ? "  " : "") +
            (columns_[i].left ? pad_right(cell, columns_[i].width) : pad_left(cell, columns_[i].width));
    used += (i ? 2 : 0) + columns_[i].width;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void Table::print_heading() const {
  std::vector<std::string> above, titles;
  for (const Column& c : columns_) {
    above.push_back(c.above);
    titles.push_back(c.title);
  }
  if (std::any_of(above.begin(), above.end(), [](const std::string& s) { return !s.empty(); })) print(above);
  print(titles);
}

void Table::print_row(const std::vector<std::string>& cells) const { print(cells); }

Progress::Progress(std::string what, double expected_seconds)
    : what_(std::move(what)), expected_(expected_seconds) {}

void Progress::update(double seconds) {
  if (seconds < 2 || !isatty(STDERR_FILENO)) return;
  shown_ = true;
  const std::string expected = expected_ > 0 ? " of about " + duration(expected_) : "";
  std::fprintf(stderr, "\r%s: %.0f s%s\033[K", what_.c_str(), seconds, expected.c_str());
}

Progress::~Progress() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
}

}  // namespace course
