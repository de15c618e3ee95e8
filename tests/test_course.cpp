/// @file
/// The parts of the program: numbers, files, inputs, child processes, checks.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "steps/course/check.h"
#include "steps/course/child.h"
#include "steps/course/failure.h"
#include "steps/course/gpu.h"
#include "steps/course/measure.h"
#include "steps/course/npy.h"
#include "steps/course/options.h"
#include "steps/course/process.h"
#include "steps/course/steps.h"
#include "steps/course/units.h"

using namespace course;
using attention::Dtype;
using attention::Problem;

namespace {

// What a call throws, or "".
template <typename Call>
std::string complaint(Call call) {
  try {
    call();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A folder that is gone after the test.
struct Folder {
  Folder() {
    char name[] = "/tmp/flash_course_XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string operator/(const std::string& file) const { return (path / file).string(); }
  std::filesystem::path path;
};

std::string npy_text(const std::string& dictionary, size_t data_bytes, char major = 1) {
  std::string text = std::string("\x93NUMPY") + major + '\0';
  text += static_cast<char>(dictionary.size() & 0xFF);
  text += static_cast<char>(dictionary.size() >> 8);
  if (major > 1) text += std::string(2, '\0');
  return text + dictionary + std::string(data_bytes, '\0');
}

std::string header(const std::string& descr, const std::string& order, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': (" + shape + "), }\n";
}

// What reading a file of this content says.
std::string reading(const Folder& folder, const std::string& content) {
  const std::string file = folder / "x.npy";
  std::ofstream(file, std::ios::binary) << content;
  return complaint([&] { read_half_npy(file); });
}

Problem small(int64_t heads, int64_t seq = 5) { return {1, heads, seq, seq, 64, false, 0.125f}; }

double at(const std::vector<uint16_t>& values, int64_t i) {
  return attention::from_half(values[static_cast<size_t>(i)]);
}

}  // namespace

TEST_CASE("numbers for people") {
  CHECK(short_count(0) == "0");
  CHECK(short_count(9999) == "9999");
  CHECK(short_count(10000) == "10.00k");
  CHECK(short_count(12345) == "12.35k");
  CHECK(short_count(999949) == "999.9k");
  CHECK(short_count(999950) == "1.000M");
  CHECK(short_count(33554432) == "33.55M");
  CHECK(short_count(UINT64_MAX) == "18.45E");
  for (uint64_t n = 1; n < UINT64_MAX / 7; n *= 7) CHECK(short_count(n).size() <= 6);
  CHECK(digits(0.3127, 2) == "0.31");
  CHECK(digits(723.46, 4) == "723.5");
  CHECK(digits(-0.125, 4) == "-0.125");
  CHECK(digits(12345, 3) == "12345");
  CHECK(digits(INFINITY, 3) == "inf");
  CHECK(bytes(17179869184.0) == "17.2 GB");
  CHECK(duration(0.42) == "0.42 s");
  CHECK(duration(3600) == "60 min");
}

TEST_CASE("numbers from the command line") {
  CHECK(whole_number("--batch", "42") == 42);
  CHECK(whole_number("--batch", "-3") == -3);
  for (const char* text : {"", "1.5", "1e3", "abc", "12x", " 12", "99999999999999999999"})
    CHECK(complaint([&] { whole_number("--batch", text); }) ==
          "--batch takes a whole number; '" + std::string(text) + "' is none.");
  CHECK(number("--scale", "-0.5") == -0.5);
  CHECK(number("--scale", "1e-3") == 1e-3);
  for (const char* text : {"", "abc", "nan", "1,5", "0.5x"})
    CHECK(complaint([&] { number("--scale", text); }) ==
          "--scale takes a number; '" + std::string(text) + "' is none.");
}

TEST_CASE("options become a problem") {
  ProblemOptions o;
  Problem p = read_problem(o, Machine::simulated).problem;
  CHECK(describe(p) == "B=1 H=2 Sq=256 Sk=256 D=64 full scale=0.125");
  o.seq = "7";
  o.seq_k = "9";
  o.dim = "128";
  o.causal = true;
  o.scale = "-2";
  p = read_problem(o, Machine::simulated).problem;
  CHECK(describe(p) == "B=1 H=2 Sq=7 Sk=9 D=128 causal scale=-2");
  CHECK(matmul_flops(p) == 4.0 * 2 * 7 * 9 * 128 / 2);
  o.dtype = "bf16";
  CHECK(describe(read_problem(o, Machine::simulated).problem).ends_with(" scale=-2 bf16"));
  o.dtype = "fp8";
  CHECK(complaint([&] { read_problem(o, Machine::simulated); }) ==
        "There is no dtype 'fp8'; the dtypes are fp16 and bf16.");
  o.dtype = "fp16";
  o.dim = "80";
  CHECK(contains(complaint([&] { read_problem(o, Machine::simulated); }), "head dimension is 80"));
  o.dim = "64";
  o.batch = "-1";
  CHECK(complaint([&] { read_problem(o, Machine::simulated); }) == "--batch is -1; a size is 0 or more.");
  o.batch = "100000000000";
  CHECK(contains(complaint([&] { read_problem(o, Machine::simulated); }), "memory"));
  o.batch = "1";
  o.V_file = "v.npy";
  CHECK(contains(complaint([&] { read_problem(o, Machine::simulated); }), "--q is missing"));
}

TEST_CASE("a .npy file comes back as it was written, NaN and infinity too") {
  const Folder folder;
  std::vector<uint16_t> values(2 * 3 * 4 * 64);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<uint16_t>(i * 43);  // many are NaN or infinite
  write_npy(folder / "x.npy", {2, 3, 4, 64}, values.data());
  const HalfTensor x = read_half_npy(folder / "x.npy");
  CHECK(x.shape == std::array<int64_t, 4>{2, 3, 4, 64});
  CHECK(x.values == values);
  write_npy(folder / "empty.npy", {0, 3, 4, 64}, values.data());
  CHECK(read_half_npy(folder / "empty.npy").values.empty());

  const float lse[] = {1, 2, -INFINITY};
  write_npy(folder / "lse.npy", {1, 1, 3}, lse);
  std::ifstream in(folder / "lse.npy", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  CHECK(text.size() == 128 + 12);  // data at a multiple of 64, as the format asks
  CHECK(contains(text, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 3), }"));
}

TEST_CASE("BF16 is read from float32 files, rounded, and written to them exactly; float16 is refused") {
  const Folder folder;
  const Dtype bf16 = Dtype::bf16;
  std::vector<uint16_t> values(1 << 16);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i);
  write_npy(folder / "x.npy", {1, 1, 1024, 64}, values.data(), bf16);
  CHECK(std::filesystem::file_size(folder / "x.npy") == 128 + 4 * 65536);
  const HalfTensor x = read_half_npy(folder / "x.npy", bf16);
  CHECK(x.shape == std::array<int64_t, 4>{1, 1, 1024, 64});
  for (uint16_t& bits : values)
    if ((bits & 0x7FFF) > 0x7F80) bits |= 0x40;  // a NaN is quiet
  CHECK(x.values == values);
  std::string text = npy_text(header("<f4", "False", "1, 1, 1, 64"), 256);
  const float third = 1.0f / 3;  // 0x3EAAAAAB: up
  std::memcpy(&text[text.size() - 4], &third, 4);
  std::ofstream(folder / "x.npy", std::ios::binary) << text;
  CHECK(read_half_npy(folder / "x.npy", bf16).values.back() == 0x3EAB);
  std::ofstream(folder / "x.npy", std::ios::binary) << npy_text(header("<f4", "False", "1, 1, 2, 64"), 256);
  CHECK(contains(complaint([&] { read_half_npy(folder / "x.npy", bf16); }), "takes 512 bytes of data, and it has 256"));
  write_npy(folder / "x.npy", {1, 1, 1, 64}, values.data());
  CHECK(contains(complaint([&] { read_half_npy(folder / "x.npy", bf16); }),
                 "holds elements of type '<f2'; for BF16, float32 ('<f4') is needed, since NumPy has no bfloat16"));
}

TEST_CASE("every version of the .npy format is read") {
  const Folder folder;
  for (char major : {1, 2, 3})
    CHECK(reading(folder, npy_text(header("<f2", "False", "1, 1, 2, 64"), 256, major)) == "");
}

TEST_CASE("a wrong .npy file is refused by name") {
  const Folder folder;
  const std::string good = npy_text(header("<f2", "False", "1, 1, 2, 64"), 256);
  CHECK(reading(folder, good) == "");
  const std::pair<std::string, const char*> wrong[] = {
      {"", "is empty (0 bytes)"},
      {"hello, world", "is no .npy file"},
      {"\x93NUMPY", "is no .npy file"},
      {good.substr(0, 20), "is truncated: its header ends at byte"},
      {good.substr(0, good.size() - 1), "takes 256 bytes of data, and it has 255"},
      {good + "x", "has trailing bytes: its shape [1, 1, 2, 64] takes 256 bytes of data, and it has 257"},
      {npy_text(header("<f2", "False", "1, 1, 2, 64"), 256, 9), "has .npy version 9"},
      {npy_text(header("<f4", "False", "1, 1, 2, 64"), 512),
       "holds elements of type '<f4'; float16 ('<f2') is needed"},
      {npy_text(header(">f2", "False", "1, 1, 2, 64"), 256), "holds elements of type '>f2'"},
      {npy_text("{'descr': [('a', '<f2')], 'fortran_order': False, 'shape': (2,), }\n", 4), "holds records"},
      {npy_text(header("<f2", "True", "1, 1, 2, 64"), 256), "is in Fortran order"},
      {npy_text(header("<f2", "False", "1, 2, 64"), 256), "has rank 3, shape [1, 2, 64]; rank 4 is needed"},
      {npy_text(header("<f2", "False", ""), 2), "has rank 0"},
      {npy_text(header("<f2", "False", "4000000000, 4000000000, 1, 64"), 256), "which no memory holds"},
      {npy_text(header("<f2", "False", "99999999999999999999, 1, 1, 64"), 256), "which no memory holds"},
      {npy_text("{'descr': '<f2', 'fortran_order': False, }\n", 256), "names no 'shape'"},
      {npy_text("{'descr': '<f2', 'fortran_order': False, 'shape': (1, -1, 2, 64), }\n", 256),
       "names no 'shape'"},
  };
  for (const auto& [content, part] : wrong) {
    const std::string said = reading(folder, content);
    CAPTURE(said);
    CHECK(contains(said, part));
    CHECK(contains(said, folder / "x.npy"));
    CHECK(said.back() == '.');
    CHECK(!contains(said, "\n"));
  }
  CHECK(contains(complaint([&] { read_half_npy(folder / "absent.npy"); }), "does not exist"));
  CHECK(contains(complaint([&] { read_half_npy(folder.path.string()); }), "is not a regular file"));
}

TEST_CASE("an output that cannot be written is known before the work") {
  const Folder folder;
  CHECK(contains(complaint([&] { check_writable(folder / "no/o.npy"); }),
                 "cannot be written: No such file or directory"));
  CHECK(contains(complaint([&] { check_writable(folder.path.string()); }), "cannot be written"));
  check_writable(folder / "o.npy");
  CHECK(!std::filesystem::exists(folder / "o.npy"));  // it only asks
  std::ofstream(folder / "o.npy") << "kept";
  check_writable(folder / "o.npy");
  CHECK(std::filesystem::file_size(folder / "o.npy") == 4);
  const uint16_t value[64 * 1024] = {};
  CHECK(contains(complaint([&] {
                   write_npy("/dev/full", {1, 1, 1024, 64}, value);
                 }),
                 "could not be written in full"));
}

TEST_CASE("files whose shapes do not fit are refused, with a hint at the layout") {
  const Folder folder;
  const std::vector<uint16_t> zeros(1 * 100 * 100 * 64);
  ProblemOptions o;
  o.Q_file = folder / "q.npy";
  o.K_file = folder / "k.npy";
  o.V_file = folder / "v.npy";
  auto with = [&](std::array<int64_t, 4> q, std::array<int64_t, 4> k, std::array<int64_t, 4> v) {
    write_npy(o.Q_file, q, zeros.data());
    write_npy(o.K_file, k, zeros.data());
    write_npy(o.V_file, v, zeros.data());
    return complaint([&] { read_problem(o, Machine::simulated); });
  };
  CHECK(with({1, 2, 3, 64}, {1, 2, 5, 64}, {1, 2, 5, 64}) == "");
  CHECK(contains(with({1, 2, 3, 64}, {1, 2, 5, 64}, {1, 2, 4, 64}), "K and V differ"));
  CHECK(contains(with({1, 3, 3, 64}, {1, 2, 5, 64}, {1, 2, 5, 64}), "Q is [1, 3, 3, 64]"));
  CHECK(contains(with({1, 100, 6, 64}, {1, 90, 6, 64}, {1, 90, 6, 64}), "transpose"));
  CHECK(contains(with({1, 2, 3, 32}, {1, 2, 5, 32}, {1, 2, 5, 32}), "head dimension is 32"));
  o.heads = "2";
  CHECK(contains(with({1, 2, 3, 64}, {1, 2, 5, 64}, {1, 2, 5, 64}), "--heads cannot be given together"));
}

TEST_CASE("inputs are the same everywhere and differ by seed, tensor and place") {
  const Problem p{2, 3, 70, 90, 64, false, 0.125f};
  for (const InputKind& kind : input_kinds()) {
    CAPTURE(kind.name);
    const Inputs a = make_inputs(kind.name, p, 1), b = make_inputs(kind.name, p, 1);
    CHECK(a.Q.size() == static_cast<size_t>(p.query_rows() * p.dim));
    CHECK(a.K.size() == static_cast<size_t>(p.key_rows() * p.dim));
    CHECK((a.Q == b.Q && a.K == b.K && a.V == b.V));
    CHECK(a.K != make_inputs(kind.name, p, 2).K);
    CHECK(a.K != a.V);
    for (const auto* x : {&a.Q, &a.K, &a.V})
      for (uint16_t bits : *x) REQUIRE(std::isfinite(attention::from_half(bits)));
  }
  // Known bits: another platform, compiler or number of cores must find the same.
  const Inputs gaussian = make_inputs("gaussian", p, 1);
  uint64_t sum = 0;
  for (const auto* x : {&gaussian.Q, &gaussian.K, &gaussian.V})
    for (uint16_t bits : *x) sum = sum * 31 + bits;
  CHECK(sum == 7027638121777162673u);
  Problem in_bf16 = p;  // the same numbers, rounded less finely
  in_bf16.dtype = Dtype::bf16;
  const Inputs rounded = make_inputs("gaussian", in_bf16, 1);
  for (int64_t i = 0; i < 1000; ++i)
    CHECK(attention::from_bfloat16(rounded.K[static_cast<size_t>(i)]) == doctest::Approx(at(gaussian.K, i)).epsilon(0x1p-7));
  CHECK(contains(complaint([&] { make_inputs("uniform", p, 1); }),
                 "There is no input 'uniform'; the inputs are gaussian, "));
}

TEST_CASE("large tensors, filled by many cores, hold the same bits as their beginning alone") {
  const Inputs large = make_inputs("gaussian", {1, 1, 20000, 0, 64, false, 1}, 3);  // over 2^20 elements
  const Inputs small = make_inputs("gaussian", {1, 1, 100, 0, 64, false, 1}, 3);
  CHECK(std::equal(small.Q.begin(), small.Q.end(), large.Q.begin()));
}

TEST_CASE("gaussian and outliers have the moments they say") {
  const Problem p{1, 2, 2000, 2000, 64, false, 0.125f};
  auto variance = [](const std::vector<uint16_t>& x) {
    double sum = 0, squares = 0;
    for (uint16_t bits : x) {
      sum += attention::from_half(bits);
      squares += std::pow(attention::from_half(bits), 2);
    }
    const auto n = static_cast<double>(x.size());
    CHECK(std::fabs(sum / n) < 0.01);
    return squares / n;
  };
  CHECK(variance(make_inputs("gaussian", p, 1).Q) == doctest::Approx(1).epsilon(0.02));
  CHECK(variance(make_inputs("outliers", p, 1).K) == doctest::Approx(1.1).epsilon(0.03));
}

TEST_CASE("inputs do what their names promise") {
  const Problem p{1, 2, 70, 130, 64, false, 0.125f};
  auto score = [&](const Inputs& x, int64_t i, int64_t j) {  // of the second head
    double dot = 0;
    for (int64_t c = 0; c < p.dim; ++c) dot += at(x.Q, (70 + i) * 64 + c) * at(x.K, (130 + j) * 64 + c);
    return dot * p.scale;
  };
  const Inputs growing = make_inputs("growing", p, 1), negative = make_inputs("negative", p, 1),
               last = make_inputs("last_key_wins", p, 1), finger = make_inputs("fingerprint", p, 1),
               zeros = make_inputs("zeros_q", p, 1);
  int rises = 0;
  for (int64_t i = 0; i < 70; ++i) {
    double block_max = -INFINITY;
    for (int64_t first = 0; first + 32 <= 130; first += 32) {
      double m = -INFINITY;
      for (int64_t j = first; j < first + 32; ++j) m = std::max(m, score(growing, i, j));
      rises += m > block_max;
      block_max = std::max(block_max, m);
    }
    double others = -INFINITY;
    std::multiset<double> scores;
    for (int64_t j = 0; j < 130; ++j) {
      CHECK(score(negative, i, j) < 0);
      CHECK(score(zeros, i, j) == 0);
      if (j < 129) others = std::max(others, score(last, i, j));
      scores.insert(score(finger, i, j));
    }
    CHECK(score(last, i, 129) > others + 4);
    CHECK(*scores.rbegin() > *std::next(scores.rbegin()) + 4);  // each query finds its key
  }
  CHECK(rises > 70 * 4 * 9 / 10);
  CHECK(at(zeros.V, (130 + 77) * 64 + 5) == 77);

  // No two heads, and no two keys of a head, share their V.
  std::set<std::vector<uint16_t>> rows;
  for (int64_t r = 0; r < 127; ++r) rows.emplace(finger.V.begin() + r * 64, finger.V.begin() + (r + 1) * 64);
  CHECK(rows.size() == 127);
}

TEST_CASE("a child's answer comes back") {
  const ChildResult r = run_in_child("It", 10, [] {
    return nlohmann::json{{"x", 42}, {"long", std::string(300000, 'y')}};
  });
  REQUIRE(r.ok);
  CHECK(r.value["x"] == 42);
  CHECK(r.value["long"].get<std::string>().size() == 300000);
}

TEST_CASE("whatever happens in a child becomes one sentence") {
  using nlohmann::json;
  const std::pair<const char*, std::function<json()>> cases[] = {
      {"Seven is wrong.", [] { return throw Failure("Seven is wrong."), json(); }},
      {"An exception of an unknown type", [] { return throw 7, json(); }},
      {"memory is used up", [] { return throw std::bad_alloc(), json(); }},
      {"The work crashed: signal 11", [] { return raise(SIGSEGV), json(); }},
      {"The work crashed: signal 6", [] { return std::abort(), json(); }},
      {"The work crashed: signal 9", [] { return raise(SIGKILL), json(); }},
      {"exit code 3", [] { return _exit(3), json(); }},
      {"exit code 0", [] { return std::exit(0), json(); }},
      {"The work did not end within 0.5 s.",
       [] {
         while (getppid() > 0) {
         }
         return json();
       }},
      {"The work did not end within 0.5 s.", [] { return pause(), pause(), json(); }},
  };
  for (const auto& [part, work] : cases) {
    const ChildResult r = run_in_child("The work", 0.5, work);
    CAPTURE(r.sentence);
    CHECK(!r.ok);
    CHECK(contains(r.sentence, part));
    CHECK(r.sentence.back() == '.');
  }
}

TEST_CASE("a child that blocks every signal is killed") {
  const auto start = std::chrono::steady_clock::now();
  const ChildResult r = run_in_child("The work", 0.2, [] {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, nullptr);
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
    return nlohmann::json();
  });
  CHECK(r.sentence == "The work did not end within 0.2 s.");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("each fault of a step becomes one sentence, and none is right") {
  // Keep in step with faulty_step.cu.
  const char* said[] = {"",
                        "",                          // zeros: compare() words it
                        "",                          // nothing written: likewise
                        "faulty_kernel",             // an endless loop: where it was stopped
                        "faulty_kernel",             // a deadlock
                        "outside every allocation",  // one element past O
                        "out of bounds",             // a wild pointer
                        "wrote to its input Q",
                        "crashed: signal 6",
                        "ended the program by itself, with exit code 0",
                        "Ten heads are too many"};
  for (int64_t fault = 1; fault <= 10; ++fault) {
    CAPTURE(fault);
    const Problem p = small(fault);
    const Question question = ask(p, make_inputs("gaussian", p, 1));
    const Outcome outcome = check_apart(FLASH_FAULTY_STEP, question, {}, 2);
    CAPTURE(outcome.message);
    CHECK(!outcome.right());
    CHECK(outcome.kind == (fault == 10 ? Outcome::Kind::refused : Outcome::Kind::wrong));
    CHECK(contains(outcome.message, said[fault]));
    CHECK(outcome.message.size() > 20);
  }
}

TEST_CASE("an outcome survives the way through the pipe") {
  Outcome a;
  a.kind = Outcome::Kind::right;
  a.message = "well";
  a.verdict = {true, INFINITY, 0.5, 0.25, "said"};
  a.ledger.global_read = UINT64_MAX;
  a.ledger.ctas = 7;
  a.reports = {{"race", "A race."}};
  a.sites = {{"attention.cu", 12, "__syncthreads", {"drop"}}};
  a.ms = {1, 2, 3};
  a.kernels = "k registers=1\n";
  const nlohmann::json j = a;
  const Outcome b = nlohmann::json::parse(j.dump()).get<Outcome>();
  CHECK(nlohmann::json(b) == j);
  CHECK(b.ledger.global_read == UINT64_MAX);
  CHECK(std::isinf(b.verdict.margin));
}

TEST_CASE("a window of launches has a median and a spread") {
  std::vector<double> start, ms;
  for (int i = 0; i < 100; ++i) {
    start.push_back(i);
    ms.push_back(i < 10 ? 50 : i % 10);
  }
  const Window w = window("burst", start, ms, 10, 40);
  CHECK(w.launches == 30);
  CHECK(w.ms_median == doctest::Approx(5).epsilon(0.2));
  CHECK(w.ms_p10 == 1);
  CHECK(w.ms_p90 == 8);
  CHECK(window("burst", start, ms, 1000, 2000).launches == 0);
}

TEST_CASE("a GPU runs what its architecture allows") {
  flash_gpu_info gpu{};
  gpu.major = 8;
  gpu.minor = 9;
  CHECK(why_not("75", gpu) == "");
  CHECK(why_not("80", gpu) == "");
  CHECK(contains(why_not("90a", gpu), "compute capability 8.9; this step needs 9.0 itself"));
  gpu.major = 9;
  gpu.minor = 0;
  gpu.sm_count = 132;
  CHECK(why_not("90a", gpu) == "");
  CHECK(peak_tflops(gpu) == doctest::Approx(989.4).epsilon(0.001));
  gpu.major = 10;
  CHECK(why_not("80", gpu) == "");
  CHECK(why_not("90a", gpu) != "");
  gpu.major = 7;
  CHECK(contains(why_not("80", gpu), "needs 8.0 or newer"));
}

TEST_CASE("other programs") {
  CHECK(output_of({"echo", "a b"}) == "a b\n");
  CHECK(output_of({"false"}) == "");
  CHECK(output_of({"no-such-program"}) == "");
  CHECK(find_program("sh") != "");
  CHECK(find_program("no-such-program") == "");
  CHECK(run_program({"sh", "-c", "exit 3"}) == 3);
  CHECK(contains(complaint([] { run_program({"no-such-program"}); }), "cannot be started"));
  CHECK(command_line({"ncu", "-k", "regex:a b"}) == "ncu -k 'regex:a b'");
}

TEST_CASE("steps are found by number and by name") {
  REQUIRE(!all_steps().empty());
  const Step& first = all_steps().front();
  CHECK(find_step(first.number()).name == first.name);
  CHECK(find_step(first.name).name == first.name);
  CHECK(contains(complaint([] { find_step("99"); }), "There is no step '99'; the steps are " + first.name));
  CHECK(find_steps({}).size() == all_steps().size());
}
