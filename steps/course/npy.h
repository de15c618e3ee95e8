/// @file
/// NumPy's .npy files: float16 in, float16 and float32 out, C order, no Python needed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace course {

/// A tensor [batch, heads, sequence, dim] of FP16 bit patterns.
struct HalfTensor {
  std::array<int64_t, 4> shape{};
  std::vector<uint16_t> values;
};

/// Reads a float16 tensor of rank 4 in C order. NaN and infinity are data.
/// @throws Failure  naming the file, what is wrong with it and how NumPy writes it right
HalfTensor read_half_npy(const std::string& file);

/// Writes [batch, heads, sequence, dim] as float16.
/// @throws Failure  if the file cannot be written in full
void write_npy(const std::string& file, const std::array<int64_t, 4>& shape, const uint16_t* values);

/// Writes [batch, heads, sequence] as float32.
/// @throws Failure  if the file cannot be written in full
void write_npy(const std::string& file, const std::array<int64_t, 3>& shape, const float* values);

/// Finds out before a long computation whether a file can be written; changes no content.
/// @throws Failure  with the reason
void check_writable(const std::string& file);

/// "[1, 6, 1500, 64]"
std::string shape_text(const std::array<int64_t, 4>& shape);

}  // namespace course
