/// @file
/// Numbers as people read them.
#include "units.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace course {
namespace {

size_t code_points(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string padding(const std::string& text, size_t width) {
  const size_t have = code_points(text);
  return std::string(have < width ? width - have : 0, ' ');
}

// Decimals that leave `significant` digits in a value of at least 1.
std::string fixed(double value, int significant) {
  for (int decimals = significant - 1; decimals >= 0; --decimals) {
    char text[64];
    const int length = std::snprintf(text, sizeof text, "%.*f", decimals, value);
    if (length <= significant + (decimals > 0 ? 1 : 0) || decimals == 0) return text;
  }
  return {};
}

}  // namespace

std::string short_count(uint64_t count) {
  if (count < 10000) return std::to_string(count);
  const char* suffix = "kMGTPE";
  double value = static_cast<double>(count) / 1000;
  while (value >= 999.95) {
    value /= 1000;
    ++suffix;
  }
  return fixed(value, 4) + *suffix;
}

std::string digits(double value, int significant) {
  if (std::isfinite(value) && std::fabs(value) >= 1)
    return std::string(value < 0 ? "-" : "") + fixed(std::fabs(value), significant);
  char text[64];
  std::snprintf(text, sizeof text, "%.*g", significant, value);
  return text;
}

std::string duration(double seconds) {
  if (seconds < 100) return digits(seconds, 2) + " s";
  if (seconds < 120) return digits(seconds, 3) + " s";
  if (seconds < 7200) return digits(seconds / 60, 2) + " min";
  if (seconds < 48 * 3600.0) return digits(seconds / 3600, 2) + " h";
  return digits(seconds / 86400, 2) + " days";
}

std::string bytes(double count) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  size_t unit = 0;
  while (count >= 999.5 && unit + 1 < std::size(units)) {
    count /= 1000;
    ++unit;
  }
  return digits(count, 3) + " " + units[unit];
}

std::string pad_right(const std::string& text, size_t width) { return text + padding(text, width); }
std::string pad_left(const std::string& text, size_t width) { return padding(text, width) + text; }

}  // namespace course
