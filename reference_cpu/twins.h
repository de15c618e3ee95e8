/// @file
/// The algorithms of the papers in Eigen, block by block: read one here before you read its CUDA.
///
/// Each twin computes one head. In double it shows that the algorithm is exact; in float with Options::half_P
/// it rounds where a kernel rounds. Each counts what it moves between global memory and the chip (Traffic),
/// so that the ledger of the lessons can be checked against loops that anybody can read.
///
/// Every twin obeys the contract of attention.h: any sizes, bottom-right causal mask, O = 0 and
/// LSE = -infinity for a query that sees no key, NaN for a row that sees one. A key block that no row of a
/// query block sees is neither loaded nor computed; only the two textbook versions, which store S, walk
/// every key.
#pragma once

#include "attention.h"
#include "fp8.h"

#include <Eigen/Dense>

#include <algorithm>
#include <functional>
#include <limits>

namespace attention::twins {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Column = Eigen::Matrix<T, Eigen::Dynamic, 1>;

/// What a twin moved and computed. Bytes are those of the kernels: Q, K, V and O are FP16 (or FP8); S, P, l, m, LSE
/// and an O that is still being summed are float. Only rows and keys that exist count, not the padding of a
/// tile.
struct Traffic {
  int64_t read = 0;     ///< bytes from global memory
  int64_t written = 0;  ///< bytes to global memory
  int64_t exponentials =
      0;                  ///< of scores in the blocks that are computed, hidden ones included, and of factors
  int64_t divisions = 0;  ///< how often a row is divided by its l, summed over the rows
  int64_t rescales = 0;   ///< how often a row of O is multiplied by exp(m_old - m), summed over the rows

  int64_t bytes() const { return read + written; }
  Traffic& operator+=(const Traffic& other);
};

constexpr int64_t fp8_bytes = 1;
constexpr int64_t half_bytes = 2;
constexpr int64_t float_bytes = 4;

/// One head of a problem.
template <class T>
struct Head {
  Matrix<T> Q;           ///< [Nq, d]
  Matrix<T> K;           ///< [Nk, d]
  Matrix<T> V;           ///< [Nk, d]
  T scale = 1;           ///< sigma
  bool causal = false;   ///< key j is visible to query i iff j <= i + diagonal
  int64_t diagonal = 0;  ///< Nk - Nq: the last query sees the last key

  int64_t Nq() const { return Q.rows(); }
  int64_t Nk() const { return K.rows(); }
  int64_t d() const { return Q.cols(); }

  /// Query i sees keys 0 .. visible(i) - 1.
  int64_t visible(int64_t i) const { return causal ? std::clamp<int64_t>(i + diagonal + 1, 0, Nk()) : Nk(); }
};

/// What a twin returns: O is [Nq, d], not yet rounded to FP16; LSE is [Nq].
template <class T>
struct Output {
  Matrix<T> O;
  Column<T> LSE;
  Traffic traffic;
};

/// The choices that the papers leave open.
struct Options {
  int64_t Br = 64;      ///< rows of a query block
  int64_t Bc = 64;      ///< rows of a key block
  bool half_P = false;  ///< round P to FP16 before it is multiplied by V, as tensor cores need it
  int64_t vote_rows =
      0;  ///< flash_attention_2: 0 rescales O at every block after the first; r only if one of r
          ///< neighbouring rows has a new maximum (the factor is 1 otherwise)
  // of flash_attention_3_fp8:
  bool e4m3_P = true;      ///< round P to e4m3 before it is multiplied by V
  double P_log2 = 8;       ///< P is 2^P_log2 times as large as exp(S - m)
  double slack = 0;        ///< m stays until a score exceeds it by more than this, in log2: P is up to 2^(P_log2 + slack).
                           ///< If one of vote_rows neighbouring rows needs a new maximum, all take theirs
  bool rounded_l = false;  ///< l is the sum of P as it is rounded: P times a column of ones beside V, in the same
                           ///< accumulator; else that of P before, in T
  int64_t sum_bits = 0;    ///< bits that the accumulator of a product keeps behind its leading one; Hopper's has 13.
                           ///< 0: as many as T
  bool last_to_first = false;  ///< walk the key blocks backwards; matters where sum_bits cuts
  bool two_level = false;  ///< sum each block's P V on its own, and add it to O in T; else in one accumulator, in units
                           ///< of V's descale
  Quantization quantization = {};  ///< of Q, K and V; with blocks, Bc must divide block_rows
};

// ------------------------------------------------------------------------------------- before FlashAttention

/// Running maximum and sum of one row: l = sum of exp(x - m) over the scores x seen so far.
/// Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv 1805.02867), Algorithm 3.
template <class T>
struct Running {
  T m = -std::numeric_limits<T>::infinity();
  T l = 0;
};

/// One more score.
template <class T>
Running<T> push(Running<T> row, T x);

/// Two parts of one row, in either order; the same paper's eq. 4.
template <class T>
Running<T> merge(Running<T> a, Running<T> b);

/// Attention as it is written on paper (FA-1's Algorithm 0), each step a pass over memory:
/// S = scale Q K^T, P = softmax(S) and O = P V, with S and P [Nq, Nk] in global memory.
/// S and P are stored in full, hidden scores as -infinity. Bytes are *distinct* bytes per step.
template <class T>
Output<T> two_pass_softmax(const Head<T>& head, const Options& options = {});

/// S is stored, P is not: softmax and P V in one pass over a row of S with a running (m, l), key by key.
/// Bytes are *distinct* bytes per step.
template <class T>
Output<T> online_softmax(const Head<T>& head, const Options& options = {});

// ------------------------------------------------------------------------------------------- FlashAttention

/// FA-1's block sizes for M *elements* (not bytes) of memory on the chip: Bc = ceil(M / 4d), Br = min(Bc, d).
Options paper_blocks(int64_t M, int64_t d);

/// FlashAttention, Algorithm 1 (arXiv 2205.14135): key blocks outside, query blocks inside. O (float), l and
/// m live in global memory and make a round trip for every key block: not read at j = 0, not written at the
/// last block that query block i sees, where O (FP16) and LSE are written instead. Bytes are *asked* bytes.
template <class T>
Output<T> flash_attention_1(const Head<T>& head, const Options& options = {});

/// FlashAttention-2, Algorithm 1 (arXiv 2307.08691): query blocks outside, key blocks inside. O, l and m stay
/// on the chip, and O is divided by l once, at the end. Bytes are *asked* bytes.
template <class T>
Output<T> flash_attention_2(const Head<T>& head, const Options& options = {});

/// Flash-Decoding: the key blocks are dealt to `splits` parts of ceil(Tc / splits) blocks each. Every part is
/// a flash_attention_2 of its own, with a float O_a, normalised, and LSE_a in global memory; a second pass
/// merges them. A part whose keys a query does not see has O_a = 0 and LSE_a = -infinity; both are written
/// and read.
///
/// One number for two has a price: where |S| exceeds 2^20 or so, log l drowns in float's LSE = m + log l, and
/// parts that should weigh by their number of keys weigh the same. A kernel that must hold there keeps m_a
/// and l_a apart.
template <class T>
Output<T> split_kv(const Head<T>& head, int64_t splits, const Options& options = {});

// ------------------------------------------------------------------------------------------------------ FP8

/// A head in FP8, with the descales (fp8.h) of its rows.
template <class T>
struct Quantized {
  Head<T> stored;                                 ///< Q, K and V hold e4m3 numbers; the scale is the head's own
  Column<T> Q_descales, K_descales, V_descales;  ///< [Nq], [Nk], [Nk]: one number, or one for every block_rows rows

  /// What the stored numbers mean; if Q and K were rotated, they stay so.
  Head<T> dequantized() const {
    Head<T> head = stored;
    head.Q = Q_descales.asDiagonal() * stored.Q;
    head.K = K_descales.asDiagonal() * stored.K;
    head.V = V_descales.asDiagonal() * stored.V;
    return head;
  }
};

/// Quantizes a head of FP16 numbers; NaN and infinity become NaN.
template <class T>
Quantized<T> quantize(const Head<T>& head, Quantization quantization = {});

/// FlashAttention-3's FP8 forward: Q, K, V and P are e4m3. The options as they stand are what its code has (one descale
/// a head); the block scales and the Hadamard transform of the paper's section 3.3 are in Options::quantization, and two_level,
/// rounded_l and slack are this course's. The descales of Q and K go into the softmax's scale, that of V into the final
/// division, or into each block's sum. P = 2^8 exp(S - m), so that its largest is 256 of e4m3's 448; l carries the same
/// 2^8, of which LSE is freed at the end: LSE = m + log l - 8 log 2. Bytes are *asked* bytes of the attention kernel: Q, K
/// and V have one byte an element. The quantizer's and those of the descales are not counted: who reads them, and how
/// often, is the kernel's choice.
template <class T>
Output<T> flash_attention_3_fp8(const Head<T>& head, const Options& options = {});

// ------------------------------------------------------------------------------------------- whole problems

/// Head number `index` (b * heads + h) of a problem's tensors; shapes as in Tensors.
template <class T>
Head<T> load_head(const Problem& problem, const uint16_t* Q, const uint16_t* K, const uint16_t* V,
                  int64_t index);

/// A twin on every head: O is [batch * heads * Nq, d], LSE [batch * heads * Nq], the traffic is summed.
template <class T>
Output<T> every_head(const Problem& problem, const uint16_t* Q, const uint16_t* K, const uint16_t* V,
                     const std::function<Output<T>(const Head<T>&)>& twin);

}  // namespace attention::twins
