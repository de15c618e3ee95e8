/// @file
/// Plain-text tables whose rows appear as soon as they are known.
#pragma once

#include <string>
#include <vector>

namespace course {

/// A table with a fixed set of columns, printed to standard output row by row. A last column of text is
/// wrapped so that the page is 120 columns wide.
class Table {
public:
  struct Column {
    std::string above, title;  ///< two lines of heading
    size_t width;              ///< at least; the headings count too
    bool left = false;         ///< text stands left, numbers right
  };
  explicit Table(std::vector<Column> columns);

  void print_heading() const;
  void print_row(const std::vector<std::string>& cells) const;

private:
  void print(const std::vector<std::string>& cells) const;
  std::vector<Column> columns_;
};

/// A line on standard error that says how far the work is, if that is a terminal and the work takes over two
/// seconds.
class Progress {
public:
  /// @param expected_seconds  0 if nobody knows
  Progress(std::string what, double expected_seconds);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(double seconds);

private:
  std::string what_;
  double expected_;
  bool shown_ = false;
};

}  // namespace course
