/// @file
/// NumPy's .npy files, C order, no Python needed. NumPy has no bfloat16: BF16 is read from float32 and written to it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "reference_cpu/attention.h"

namespace course {

/// A tensor [batch, heads, sequence, dim] of bit patterns, FP16 or BF16.
struct HalfTensor {
  std::array<int64_t, 4> shape{};
  std::vector<uint16_t> values;
};

/// Reads a float16 tensor of rank 4 in C order; for BF16 a float32 tensor, each number rounded to the nearest. NaN and
/// infinity are data.
/// @throws Failure  naming the file, what is wrong with it and how NumPy writes it right
HalfTensor read_half_npy(const std::string& file, attention::Dtype dtype = attention::Dtype::fp16);

/// Writes [batch, heads, sequence, dim] as float16, or BF16 exactly as float32.
/// @throws Failure  if the file cannot be written in full
void write_npy(const std::string& file, const std::array<int64_t, 4>& shape, const uint16_t* values,
               attention::Dtype dtype = attention::Dtype::fp16);

/// Writes [batch, heads, sequence] as float32.
/// @throws Failure  if the file cannot be written in full
void write_npy(const std::string& file, const std::array<int64_t, 3>& shape, const float* values);

/// Finds out before a long computation whether a file can be written; changes no content.
/// @throws Failure  with the reason
void check_writable(const std::string& file);

/// "[1, 6, 1500, 64]"
std::string shape_text(const std::array<int64_t, 4>& shape);

}  // namespace course
