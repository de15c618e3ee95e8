/// @file
/// FP8 numbers, and tensors as the FP8 steps quantize them.
#pragma once

#include "attention.h"

namespace attention {

/// e4m3 bit pattern to float, exactly: 1 sign, 4 exponent and 3 mantissa bits, bias 7; 0x7F and 0xFF are NaN, and
/// there is no infinity.
float from_e4m3(uint8_t bits);
/// float to the nearest e4m3 bit pattern, ties to even; beyond 448, infinity included, +-448; NaN gives NaN.
uint8_t to_e4m3(float value);

/// e5m2 bit pattern to float, exactly: the upper byte of an FP16 number.
float from_e5m2(uint8_t bits);
/// float to the nearest e5m2 bit pattern, ties to even; beyond 57344, infinity included, +-57344; NaN gives NaN.
uint8_t to_e5m2(float value);

constexpr float largest_e4m3 = 448;

/// What numbers are multiplied by before they are stored: 448 / amax, with amax the largest finite magnitude of `x`; 1 if
/// amax is 0. So the largest number is stored as 448. The descale, which undoes it, is 1 / factor.
float quantizing_factor(std::span<const float> x);

/// A number as it is stored: x * factor, in float, and that in e4m3. NaN and infinity give NaN. A kernel that
/// computes the factor in another way gets another neighbour where the product is a tie.
uint8_t quantized(float x, float factor);

/// What is done to a tensor so that e4m3 loses less of it. FlashAttention-3's paper, section 3.3, has both.
struct Quantization {
  bool blocks = false;    ///< a factor for every `block_rows` rows of a head; else one for the head
  bool hadamard = false;  ///< the rows are rotated first; of Q and K

  /// The same for V, which is not rotated: its columns are O's.
  Quantization of_V() const { return {blocks, false}; }
};

/// Rows that share a factor: 0 .. 127 of a head, 128 .. 255, and so on; the last block may be shorter.
constexpr int64_t block_rows = 128;

/// +1 or -1, as if by chance: the sign that column `column` < 256 gets in rotate(). -1 where the digits of pi have a one.
float random_sign(int64_t column);

/// Multiplies a row by random signs and then by Sylvester's Hadamard matrix, y = H (s x), in float:
/// H[i][j] = (-1)^(number of ones that i and j share), so H H^T = d. The row becomes sqrt(d) as long, and two rows that
/// are both rotated have d times their product. What one element had lies in all of them now: an outlier is spread, and
/// NaN or infinity leaves no element finite. The random signs keep structured rows from adding up in one place
/// (QuIP#, arXiv 2402.04396; QuaRot, arXiv 2404.00456).
/// @param row  [d], d a power of two up to 256
void rotate(std::span<float> row);

/// One head as an FP8 step stores it.
struct StoredHead {
  std::vector<uint8_t> x;       ///< [rows, dim] e4m3
  std::vector<float> descales;  ///< [rows] what the numbers of a row are to be multiplied by
};

/// Quantizes one head. If it is rotated, its descales are also divided by sqrt(dim): then products of Q's rows and K's
/// are what they were.
/// @param x  [rows, dim] FP16 bit patterns
StoredHead quantize(std::span<const uint16_t> x, int64_t dim, Quantization quantization = {});

/// Every head of a tensor quantized, and multiplied by its descales again. What was rotated stays so: scores do not
/// change if Q and K both are, and exact attention of these tensors is what an FP8 step is held to.
/// @param x  [heads, rows, dim] FP16 bit patterns
std::vector<float> dequantized(std::span<const uint16_t> x, int64_t rows, int64_t dim, Quantization quantization = {});

}  // namespace attention
