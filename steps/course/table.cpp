/// @file
/// Plain-text tables.
#include "table.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "units.h"

namespace course {

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  for (Column& c : columns_) c.width = std::max({c.width, c.above.size(), c.title.size()});
}

void Table::print(const std::vector<std::string>& cells) const {
  std::string line;
  for (size_t i = 0; i < columns_.size(); ++i) {
    const std::string& cell = i < cells.size() ? cells[i] : "";
    line += (i ? "  " : "") +
            (columns_[i].left ? pad_right(cell, columns_[i].width) : pad_left(cell, columns_[i].width));
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
