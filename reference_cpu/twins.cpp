/// @file
/// The algorithms of the papers, in their names: query block i begins at row i*Br, key block j at key j*Bc.
#include "twins.h"

#include <bit>
#include <cmath>
#include <type_traits>

namespace attention::twins {
namespace {

template <class T>
constexpr T minus_infinity = -std::numeric_limits<T>::infinity();

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// exp(x - m), where x = -infinity weighs 0, also if m = -infinity (the difference would be NaN).
template <class T>
T weight(T x, T m) {
  return x == minus_infinity<T> ? T(0) : std::exp(x - m);
}

/// a / l; 0 for a row that has seen nothing.
template <class T>
T divide(T a, T l) {
  return l == 0 ? T(0) : a / l;
}

/// Like std::max, but a NaN on either side wins.
template <class T>
T larger(T a, T b) {
  return a > b || std::isnan(a) ? a : b;
}

/// Makes the hidden scores of the block of S whose corner is query i0 and key j0 -infinity. They are selected, not
/// added to, so whatever a hidden key holds does no harm.
template <class T>
void hide(Matrix<T>& S, const Head<T>& head, int64_t i0, int64_t j0) {
  for (int64_t i = 0; i < S.rows(); ++i)
    for (int64_t j = head.visible(i0 + i) - j0; j < S.cols(); ++j)
      if (j >= 0) S(i, j) = minus_infinity<T>;
}

/// The [br, bc] block of S = scale Q K^T whose corner is query i0 and key j0; hidden scores are -infinity. The
/// product is a lazy one: each element is a sum in the same order, so equal keys have equal scores to the last bit
/// (Eigen's blocked product sums the last rows and columns differently, which matters where scores are huge).
template <class T>
Matrix<T> scores(const Head<T>& head, int64_t i0, int64_t br, int64_t j0, int64_t bc) {
  Matrix<T> S = head.Q.middleRows(i0, br).lazyProduct(head.K.middleRows(j0, bc).transpose());
  S *= head.scale;
  hide(S, head, i0, j0);
  return S;
}

template <class T>
Column<T> row_max(const Matrix<T>& S) {
  return S.rowwise().redux(&larger<T>);
}

/// P = exp(S - m), row by row.
template <class T>
Matrix<T> weights(const Matrix<T>& S, const Column<T>& m) {
  return S.binaryExpr(m.replicate(1, S.cols()), [](T s, T max) { return weight(s, max); });
}

template <class T>
T half(T value) {
  return T(from_half(to_half(float(value))));
}

/// What is multiplied by V: P itself, or P rounded to FP16.
template <class T>
Matrix<T> operand(const Matrix<T>& P, const Options& options) {
  return options.half_P ? Matrix<T>(P.unaryExpr(&half<T>)) : P;
}

/// How many rows are rescaled if `vote` neighbouring rows decide together.
template <class T>
int64_t rescaled_rows(const Column<T>& m_old, const Column<T>& m, int64_t vote) {
  if (vote == 0) return m.size();
  int64_t rows = 0;
  for (int64_t i = 0; i < m.size(); i += vote) {
    int64_t n = std::min<int64_t>(vote, m.size() - i);
    if (m.segment(i, n) != m_old.segment(i, n)) rows += n;
  }
  return rows;
}

/// 2^e, the leading bit of |x|; 2^-100 for 0 and all that is smaller.
template <class T>
T leading_bit(T x) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr Bits mantissa = (Bits(1) << (std::numeric_limits<T>::digits - 1)) - 1;
  return std::bit_cast<T>(Bits(std::bit_cast<Bits>(std::max(std::fabs(x), T(0x1p-100))) & ~mantissa));
}

/// Products of the tensor cores for FP8: C + A B, 32 columns of A at a time. Of the 32 products and the sum so far,
/// each is cut towards zero to a multiple of 2^(e - bits), where e is the largest exponent among them; of the new
/// sum as many bits are kept. This is a model of what NVIDIA does not tell; bits = 0 sums in T.
template <class T>
Matrix<T> fp8_product(const Matrix<T>& C, const Matrix<T>& A, const Matrix<T>& B, int64_t bits) {
  if (bits == 0) return C + A.lazyProduct(B);
  using Array = Eigen::Array<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Row = Eigen::Array<T, 1, Eigen::Dynamic>;
  const T fraction = std::ldexp(T(1), -int(bits));
  Matrix<T> sums = C;
  for (int64_t i = 0; i < A.rows(); ++i)
    for (int64_t k0 = 0; k0 < A.cols(); k0 += 32) {
      const int64_t count = std::min<int64_t>(32, A.cols() - k0);
      Array x(count + 1, B.cols());  // what is added up in each column: the products, and the sum so far
      for (int64_t k = 0; k < count; ++k) x.row(k) = A(i, k0 + k) * B.row(k0 + k).array();
      x.row(count) = sums.row(i).array();
      const Row plain = x.colwise().sum();
      if (!plain.isFinite().all()) x = x.isFinite().select(x, T(0)).eval();
      const Row unit = x.abs().colwise().maxCoeff().unaryExpr(&leading_bit<T>) * fraction;
      const Row per_unit = unit.inverse();
      for (int64_t k = 0; k <= count; ++k) x.row(k) = (x.row(k) * per_unit).template cast<int32_t>().template cast<T>();
      const Row sum = x.colwise().sum() * unit;  // whole numbers so far, few enough to be exact
      const Row last = sum.unaryExpr(&leading_bit<T>) * fraction;
      sums.row(i) = plain.isFinite().select((sum / last).template cast<int32_t>().template cast<T>() * last, plain);
    }
  return sums;
}

template <class T>
T e4m3(T value) {
  return T(from_e4m3(to_e4m3(float(value))));
}

/// The maxima that rows go on with: their new ones, if one of `vote` neighbouring rows rises by more than `slack`.
template <class T>
Column<T> raised(const Column<T>& m, const Column<T>& m_new, T slack, int64_t vote) {
  Column<T> result = m;
  for (int64_t i = 0; i < m.size(); i += vote) {
    const int64_t n = std::min(vote, m.size() - i);
    bool rises = false;
    for (int64_t r = i; r < i + n; ++r) rises |= m_new[r] - m[r] > slack;  // not where nothing is seen yet, nor for NaN
    if (rises) result.segment(i, n) = m_new.segment(i, n);
  }
  return result;
}

template <class T>
Output<T> empty_output(const Head<T>& head) {
  return {Matrix<T>::Zero(head.Nq(), head.d()), Column<T>::Constant(head.Nq(), minus_infinity<T>), {}};
}

}  // namespace

Traffic& Traffic::operator+=(const Traffic& other) {
  read += other.read;
  written += other.written;
  exponentials += other.exponentials;
  divisions += other.divisions;
  rescales += other.rescales;
  return *this;
}

// ------------------------------------------------------------------------------------- before FlashAttention

template <class T>
Running<T> push(Running<T> row, T x) {
  return merge(row, {x, weight(x, x)});
}

template <class T>
Running<T> merge(Running<T> a, Running<T> b) {
  T m = larger(a.m, b.m);
  return {m, a.l * weight(a.m, m) + b.l * weight(b.m, m)};
}

template <class T>
Output<T> two_pass_softmax(const Head<T>& head, const Options& options) {
  const int64_t Nq = head.Nq(), Nk = head.Nk(), d = head.d();
  auto [O, LSE, traffic] = empty_output(head);
  traffic.written += half_bytes * Nq * d + float_bytes * Nq;  // O and LSE
  if (Nq == 0 || Nk == 0) return {O, LSE, traffic};

  Matrix<T> S = scores(head, 0, Nq, 0, Nk);
  traffic.read += half_bytes * (Nq + Nk) * d;
  traffic.written += float_bytes * Nq * Nk;

  Column<T> m = row_max(S);
  Matrix<T> P = weights(S, m);
  Column<T> l = P.rowwise().sum();
  P = P.binaryExpr(l.replicate(1, Nk), [](T p, T sum) { return divide(p, sum); }).eval();
  LSE = m.array() + l.array().log();
  traffic.read += float_bytes * Nq * Nk;
  traffic.written += float_bytes * Nq * Nk;
  traffic.exponentials += Nq * Nk;
  traffic.divisions += Nq;

  // Hidden keys have P = 0, but 0 * NaN is NaN: each row ends at its last visible key.
  P = operand(P, options);
  for (int64_t i = 0; i < Nq; ++i) {
    O.row(i) = P.row(i).head(head.visible(i)) * head.V.topRows(head.visible(i));
    traffic.read += float_bytes * head.visible(i);
  }
  traffic.read += half_bytes * Nk * d;
  return {O, LSE, traffic};
}

template <class T>
Output<T> online_softmax(const Head<T>& head, const Options& options) {
  const int64_t Nq = head.Nq(), Nk = head.Nk(), d = head.d();
  auto [O, LSE, traffic] = empty_output(head);
  traffic.written += half_bytes * Nq * d + float_bytes * Nq;  // O and LSE
  if (Nq == 0 || Nk == 0) return {O, LSE, traffic};

  Matrix<T> S = scores(head, 0, Nq, 0, Nk);
  traffic.read += half_bytes * (Nq + Nk) * d;
  traffic.written += float_bytes * Nq * Nk;

  for (int64_t i = 0; i < Nq; ++i) {
    Running<T> row;
    for (int64_t j = 0; j < head.visible(i); ++j) {
      Running<T> next = push(row, S(i, j));
      T p = weight(S(i, j), next.m);
      O.row(i) = O.row(i) * weight(row.m, next.m) + (options.half_P ? half(p) : p) * head.V.row(j);
      row = next;
    }
    O.row(i) = O.row(i).unaryExpr([l = row.l](T o) { return divide(o, l); }).eval();
    LSE[i] = row.m + std::log(row.l);
  }
  traffic.read += float_bytes * Nq * Nk + half_bytes * Nk * d;
  traffic.exponentials += 2 * Nq * Nk;  // a weight and a factor for every key
  traffic.divisions += Nq;
  traffic.rescales += Nq * Nk;
  return {O, LSE, traffic};
}

// ------------------------------------------------------------------------------------------- FlashAttention

Options paper_blocks(int64_t M, int64_t d) {
  Options blocks;
  blocks.Bc = ceil_divide(M, 4 * d);
  blocks.Br = std::min(blocks.Bc, d);
  return blocks;
}

template <class T>
Output<T> flash_attention_1(const Head<T>& head, const Options& options) {
  const int64_t Nq = head.Nq(), Nk = head.Nk(), d = head.d(), Br = options.Br, Bc = options.Bc;
  const int64_t Tr = ceil_divide(Nq, Br), Tc = ceil_divide(Nk, Bc);
  auto [O, LSE, traffic] = empty_output(head);
  Column<T> m = Column<T>::Constant(Nq, minus_infinity<T>),
            l = Column<T>::Zero(Nq);  // in global memory, like O

  // How many key blocks query block i visits: its last row sees most.
  auto blocks = [&](int64_t i) { return ceil_divide(head.visible(std::min((i + 1) * Br, Nq) - 1), Bc); };
  auto write_output = [&](int64_t br) { traffic.written += half_bytes * br * d + float_bytes * br; };
  for (int64_t i = 0; i < Tr; ++i)
    if (blocks(i) == 0) write_output(std::min(Br, Nq - i * Br));  // O = 0 and LSE = -infinity

  for (int64_t j = 0; j < Tc; ++j) {
    const int64_t j0 = j * Bc, bc = std::min(Bc, Nk - j0);
    if (Tr == 0 || j >= blocks(Tr - 1)) break;  // nobody sees this block, nor any later one
    auto V_j = head.V.middleRows(j0, bc);
    traffic.read += half_bytes * 2 * bc * d;  // K_j and V_j

    for (int64_t i = 0; i < Tr; ++i) {
      const int64_t i0 = i * Br, br = std::min(Br, Nq - i0);
      if (j >= blocks(i)) continue;
      auto O_i = O.middleRows(i0, br);
      auto m_i = m.segment(i0, br);
      auto l_i = l.segment(i0, br);
      traffic.read += half_bytes * br * d;                                     // Q_i
      if (j > 0) traffic.read += float_bytes * br * d + float_bytes * 2 * br;  // O_i, l_i and m_i

      Matrix<T> S = scores(head, i0, br, j0, bc);
      Column<T> m_block = row_max(S);
      Matrix<T> P = weights(S, m_block);
      Column<T> l_block = P.rowwise().sum();
      Column<T> m_new = m_i.binaryExpr(m_block, &larger<T>);
      Column<T> old_factor = m_i.binaryExpr(m_new, &weight<T>);
      Column<T> block_factor = m_block.binaryExpr(m_new, &weight<T>);
      Column<T> old_sum = l_i.cwiseProduct(old_factor);
      Column<T> l_new = old_sum + block_factor.cwiseProduct(l_block);
      Matrix<T> unnormalised = old_sum.asDiagonal() * O_i;
      unnormalised += block_factor.asDiagonal() * (operand(P, options) * V_j);
      O_i = unnormalised.binaryExpr(l_new.replicate(1, d), &divide<T>);
      m_i = m_new;
      l_i = l_new;
      traffic.exponentials += br * bc + 2 * br;
      traffic.divisions += br;
      if (j > 0) traffic.rescales += br;

      if (j + 1 < blocks(i)) {
        traffic.written += float_bytes * br * d + float_bytes * 2 * br;  // O_i, l_i and m_i
      } else {
        LSE.segment(i0, br) = m_i.array() + l_i.array().log();
        write_output(br);
      }
    }
  }
  return {O, LSE, traffic};
}

template <class T>
Output<T> flash_attention_2(const Head<T>& head, const Options& options) {
  const int64_t Nq = head.Nq(), Nk = head.Nk(), d = head.d(), Br = options.Br, Bc = options.Bc;
  auto [O, LSE, traffic] = empty_output(head);

  for (int64_t i0 = 0; i0 < Nq; i0 += Br) {
    const int64_t br = std::min(Br, Nq - i0);
    const int64_t blocks = ceil_divide(head.visible(i0 + br - 1), Bc);  // the last row sees most
    Matrix<T> O_i = Matrix<T>::Zero(br, d);
    Column<T> m = Column<T>::Constant(br, minus_infinity<T>), l = Column<T>::Zero(br);
    if (blocks > 0) traffic.read += half_bytes * br * d;  // Q_i

    for (int64_t j = 0; j < blocks; ++j) {
      const int64_t j0 = j * Bc, bc = std::min(Bc, Nk - j0);
      traffic.read += half_bytes * 2 * bc * d;  // K_j and V_j
      Matrix<T> S = scores(head, i0, br, j0, bc);
      Column<T> m_new = m.binaryExpr(row_max(S), &larger<T>);
      Column<T> factor = m.binaryExpr(m_new, &weight<T>);  // the papers print its inverse; see the errata
      Matrix<T> P = weights(S, m_new);
      l = l.cwiseProduct(factor) + P.rowwise().sum();
      O_i = factor.asDiagonal() * O_i;
      O_i += operand(P, options) * head.V.middleRows(j0, bc);
      traffic.exponentials += br * bc + br;
      if (j > 0) traffic.rescales += rescaled_rows(m, m_new, options.vote_rows);
      m = m_new;
    }

    O.middleRows(i0, br) = O_i.binaryExpr(l.replicate(1, d), &divide<T>);
    LSE.segment(i0, br) = m.array() + l.array().log();
    if (blocks > 0) traffic.divisions += br;
    traffic.written += half_bytes * br * d + float_bytes * br;  // O_i and LSE_i
  }
  return {O, LSE, traffic};
}

template <class T>
Output<T> split_kv(const Head<T>& head, int64_t splits, const Options& options) {
  const int64_t Nq = head.Nq(), Nk = head.Nk(), d = head.d();
  const int64_t keys = ceil_divide(ceil_divide(Nk, options.Bc), splits) * options.Bc;  // of one part
  Output<T> merged = empty_output(head);
  std::vector<Output<T>> parts;
  Column<T> M = Column<T>::Constant(Nq, minus_infinity<T>), sum = Column<T>::Zero(Nq);

  for (int64_t a = 0; a < splits; ++a) {
    const int64_t j0 = std::min(a * keys, Nk), n = std::min(keys, Nk - j0);
    Head<T> part{head.Q,      head.K.middleRows(j0, n), head.V.middleRows(j0, n), head.scale,
                 head.causal, head.diagonal - j0};
    parts.push_back(flash_attention_2(part, options));
    merged.traffic += parts[a].traffic;
    merged.traffic.written += (float_bytes - half_bytes) * Nq * d;  // O_a is float
    M = M.binaryExpr(parts[a].LSE, &larger<T>).eval();
  }
  for (const Output<T>& part : parts) {
    Column<T> w = part.LSE.binaryExpr(M, &weight<T>);
    merged.O += w.asDiagonal() * part.O;
    sum += w;
    merged.traffic.read += float_bytes * Nq * d + float_bytes * Nq;  // O_a and LSE_a
    merged.traffic.exponentials += Nq;
  }
  merged.O = merged.O.binaryExpr(sum.replicate(1, d), &divide<T>).eval();
  merged.LSE = M.array() + sum.array().log();
  merged.traffic.divisions += Nq;
  merged.traffic.written += half_bytes * Nq * d + float_bytes * Nq;  // O and LSE
  return merged;
}

// ------------------------------------------------------------------------------------------------------ FP8

template <class T>
Quantized<T> quantize(const Head<T>& head, Quantization quantization) {
  Quantized<T> result{head, {}, {}, {}};
  auto store = [](Matrix<T>& x, Column<T>& descales, Quantization how) {
    std::vector<uint16_t> halves;
    for (int64_t i = 0; i < x.size(); ++i) halves.push_back(to_half(float(x.data()[i])));
    const StoredHead stored = attention::quantize(halves, x.cols(), how);
    for (int64_t i = 0; i < x.size(); ++i) x.data()[i] = T(from_e4m3(stored.x[size_t(i)]));
    descales = Eigen::Map<const Column<float>>(stored.descales.data(), x.rows()).template cast<T>();
  };
  store(result.stored.Q, result.Q_descales, quantization);
  store(result.stored.K, result.K_descales, quantization);
  store(result.stored.V, result.V_descales, quantization.of_V());
  return result;
}

template <class T>
Output<T> flash_attention_3_fp8(const Head<T>& head, const Options& options) {
  const int64_t Nq = head.Nq(), Nk = head.Nk(), d = head.d(), Br = options.Br, Bc = options.Bc;
  const int64_t bits = options.sum_bits;
  if (options.quantization.blocks && block_rows % Bc != 0)
    throw Refused("A key block has " + std::to_string(Bc) + " keys; with block scales that must divide " +
                  std::to_string(block_rows) + ", or its values have several descales.");
  auto [O, LSE, traffic] = empty_output(head);
  const auto [stored, Q_descales, K_descales, V_descales] = quantize(head, options.quantization);
  const T slack = T(options.slack * std::log(2.0)), enlarged = T(std::exp2(options.P_log2));

  for (int64_t i0 = 0; i0 < Nq; i0 += Br) {
    const int64_t br = std::min(Br, Nq - i0);
    const int64_t blocks = ceil_divide(head.visible(i0 + br - 1), Bc);  // the last row sees most
    Matrix<T> sums = Matrix<T>::Zero(br, d + 1);  // P times V and a column of ones: O_i, not yet divided, and beside it l
    Column<T> m = Column<T>::Constant(br, minus_infinity<T>);
    T unit = 1;  // of O_i
    if (blocks > 0) traffic.read += fp8_bytes * br * d;  // Q_i

    for (int64_t j = 0; j < blocks; ++j) {
      const int64_t j0 = (options.last_to_first ? blocks - 1 - j : j) * Bc, bc = std::min(Bc, Nk - j0);
      traffic.read += fp8_bytes * 2 * bc * d;  // K_j and V_j
      Matrix<T> S = fp8_product<T>(Matrix<T>::Zero(br, bc), stored.Q.middleRows(i0, br),
                                   stored.K.middleRows(j0, bc).transpose(), bits);
      const Column<T> row_scales = head.scale * Q_descales.segment(i0, br);
      S = row_scales.asDiagonal() * S * K_descales.segment(j0, bc).asDiagonal();
      hide(S, head, i0, j0);
      const Column<T> highest = m.binaryExpr(row_max(S), &larger<T>);
      const Column<T> m_new = raised(m, highest, slack, std::max<int64_t>(options.vote_rows, 1));
      const Column<T> factor = m.binaryExpr(m_new, &weight<T>);
      Matrix<T> P = weights(S, m_new) * enlarged;
      sums = factor.asDiagonal() * sums;
      const Column<T> plain_l = sums.col(d) + P.rowwise().sum();
      if (options.e4m3_P) P = P.unaryExpr(&e4m3<T>).eval();
      Matrix<T> V_j(bc, d + 1);
      V_j << stored.V.middleRows(j0, bc), Column<T>::Ones(bc);
      const T V_descale = V_descales[j0];
      if (options.two_level) {
        Matrix<T> block = fp8_product<T>(Matrix<T>::Zero(br, d + 1), P, V_j, bits);
        block.leftCols(d) *= V_descale;
        sums += block;
      } else {
        sums.leftCols(d) *= unit / V_descale;
        sums = fp8_product<T>(sums, P, V_j, bits);
        unit = V_descale;
      }
      if (!options.rounded_l) sums.col(d) = plain_l;
      traffic.exponentials += br * bc + br;
      if (j > 0) traffic.rescales += rescaled_rows<T>(m, m_new, options.vote_rows);
      m = m_new;
    }

    const Column<T> l = sums.col(d);
    O.middleRows(i0, br) = sums.leftCols(d).binaryExpr(l.replicate(1, d), &divide<T>) * unit;
    LSE.segment(i0, br) = m.array() + l.array().log() - T(options.P_log2 * std::log(2.0));
    if (blocks > 0) traffic.divisions += br;
    traffic.written += half_bytes * br * d + float_bytes * br;  // O_i and LSE_i
  }
  return {O, LSE, traffic};
}

// ------------------------------------------------------------------------------------------- whole problems

template <class T>
Head<T> load_head(const Problem& p, const uint16_t* Q, const uint16_t* K, const uint16_t* V, int64_t index) {
  auto load = [&](const uint16_t* x, int64_t rows) -> Matrix<T> {
    return Eigen::Map<const Matrix<uint16_t>>(x + index * rows * p.dim, rows, p.dim)
        .unaryExpr([&p](uint16_t bits) { return T(from_bits(bits, p.dtype)); });
  };
  return {load(Q, p.seq_q), load(K, p.seq_k), load(V, p.seq_k), T(p.scale), p.causal, p.seq_k - p.seq_q};
}

template <class T>
Output<T> every_head(const Problem& p, const uint16_t* Q, const uint16_t* K, const uint16_t* V,
                     const std::function<Output<T>(const Head<T>&)>& twin) {
  Output<T> all{Matrix<T>(p.query_rows(), p.dim), Column<T>(p.query_rows()), {}};
  for (int64_t index = 0; index < p.batch * p.heads; ++index) {
    Output<T> one = twin(load_head<T>(p, Q, K, V, index));
    all.O.middleRows(index * p.seq_q, p.seq_q) = one.O;
    all.LSE.segment(index * p.seq_q, p.seq_q) = one.LSE;
    all.traffic += one.traffic;
  }
  return all;
}

#define INSTANTIATE(T)                                                                                    \
  template Running<T> push(Running<T>, T);                                                                \
  template Running<T> merge(Running<T>, Running<T>);                                                      \
  template Output<T> two_pass_softmax(const Head<T>&, const Options&);                                    \
  template Output<T> online_softmax(const Head<T>&, const Options&);                                      \
  template Output<T> flash_attention_1(const Head<T>&, const Options&);                                   \
  template Output<T> flash_attention_2(const Head<T>&, const Options&);                                   \
  template Output<T> split_kv(const Head<T>&, int64_t, const Options&);                                   \
  template Quantized<T> quantize(const Head<T>&, Quantization);                                           \
  template Output<T> flash_attention_3_fp8(const Head<T>&, const Options&);                               \
  template Head<T> load_head(const Problem&, const uint16_t*, const uint16_t*, const uint16_t*, int64_t); \
  template Output<T> every_head(const Problem&, const uint16_t*, const uint16_t*, const uint16_t*,        \
                                const std::function<Output<T>(const Head<T>&)>&);
INSTANTIATE(float)
INSTANTIATE(double)
#undef INSTANTIATE

}  // namespace attention::twins
