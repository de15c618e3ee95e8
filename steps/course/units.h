/// @file
/// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace course {

/// A count in at most six characters, with four significant digits: 9999, 12.34k, 123.4M, 1.234G. Factors of
/// 1000.
std::string short_count(uint64_t count);

/// A value with so many significant digits, without an exponent where that is readable: 0.3127, 12.5, 640.
std::string digits(double value, int significant);

/// Seconds, minutes or hours: "0.42 s", "12 s", "3.5 min", "2.1 h".
std::string duration(double seconds);

/// Bytes with a decimal unit: "17.2 GB".
std::string bytes(double count);

/// Pads with spaces to `width` characters. Counts code points, so that UTF-8 text lines up.
std::string pad_right(const std::string& text, size_t width);
std::string pad_left(const std::string& text, size_t width);

}  // namespace course
