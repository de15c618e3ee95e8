/// @file
/// NumPy's .npy files. The format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#include "npy.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>

#include "failure.h"

namespace course {
namespace {

static_assert(std::endian::native == std::endian::little,
              "values are read and written as they lie in memory");

namespace fs = std::filesystem;
using attention::Dtype;
constexpr size_t prefix_bytes = 8;  // "\x93NUMPY", major and minor version

struct Header {
  std::string descr, order;
  std::vector<int64_t> shape;
  uint64_t data_begin = 0;
};

[[noreturn]] void fail(const std::string& file, const std::string& what) {
  throw Failure("The file " + file + " " + what);
}

std::string name_for_python(const std::string& file) { return fs::path(file).filename().string(); }

uint64_t regular_file_size(const std::string& file) {
  std::error_code error;
  const auto status = fs::status(file, error);
  if (!fs::exists(status)) fail(file, "does not exist.");
  if (!fs::is_regular_file(status)) fail(file, "is not a regular file.");
  const uint64_t size = fs::file_size(file, error);
  if (size == 0) fail(file, "is empty (0 bytes); write it with numpy.save.");
  return size;
}

// The text of the header, a Python dictionary.
std::string read_dictionary(std::ifstream& in, const std::string& file, uint64_t size, uint64_t& data_begin) {
  unsigned char prefix[12] = {};
  in.read(reinterpret_cast<char*>(prefix), prefix_bytes);
  if (size < prefix_bytes || std::memcmp(prefix, "\x93NUMPY", 6) != 0)
    fail(file, "is no .npy file: it does not begin with \"\\x93NUMPY\". Write it with numpy.save.");
  const int version = prefix[6];
  if (version < 1 || version > 3)
    fail(file, "has .npy version " + std::to_string(version) + "; versions 1, 2 and 3 can be read.");
  const size_t length_bytes = version == 1 ? 2 : 4;
  in.read(reinterpret_cast<char*>(prefix + prefix_bytes), static_cast<std::streamsize>(length_bytes));
  uint64_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) length |= uint64_t{prefix[prefix_bytes + i]} << (8 * i);
  data_begin = prefix_bytes + length_bytes + length;
  if (data_begin > size)
    fail(file, "is truncated: its header ends at byte " + std::to_string(data_begin) + ", and it has " +
                   std::to_string(size) + " bytes.");
  if (length > 65536)
    fail(file, "has a header of " + std::to_string(length) + " bytes, which is no plain tensor's.");
  std::string text(length, ' ');
  in.read(text.data(), static_cast<std::streamsize>(length));
  return text;
}

Header read_header(std::ifstream& in, const std::string& file, uint64_t size) {
  Header header;
  const std::string text = read_dictionary(in, file, size, header.data_begin);
  static const std::regex descr("'descr' *: *'([^']*)'"), structured("'descr' *: *\\["),
      order("'fortran_order' *: *(True|False)"), shape("'shape' *: *\\(([0-9, ]*)\\)");
  std::smatch match;
  if (std::regex_search(text, structured)) fail(file, "holds records; a plain tensor of numbers is needed.");
  if (!std::regex_search(text, match, descr)) fail(file, "has a damaged header: it names no 'descr'.");
  header.descr = match[1];
  if (!std::regex_search(text, match, order))
    fail(file, "has a damaged header: it names no 'fortran_order'.");
  header.order = match[1];
  if (!std::regex_search(text, match, shape)) fail(file, "has a damaged header: it names no 'shape'.");
  static const std::regex number("[0-9]+");
  const std::string sizes = match[1];
  for (std::sregex_iterator i(sizes.begin(), sizes.end(), number), end; i != end; ++i) {
    if (i->length() > 18) fail(file, "has the size " + i->str() + " in its shape, which no memory holds.");
    header.shape.push_back(std::stoll(i->str()));
  }
  return header;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t n : shape) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "[" + text + "]";
}

// Everything about a header that is not a tensor of rank 4 in C order, float16 or, for BF16, float32.
void check_header(const Header& h, const std::string& file, Dtype dtype) {
  const std::string name = name_for_python(file);
  if (dtype == Dtype::bf16 && h.descr != "<f4")
    fail(file, "holds elements of type '" + h.descr + "'; for BF16, float32 ('<f4') is needed, since NumPy has no bfloat16: "
                   "numpy.save('" + name + "', x.astype(numpy.float32)), or x.float().numpy() of a PyTorch tensor.");
  if (dtype == Dtype::fp16 && h.descr != "<f2")
    fail(file, "holds elements of type '" + h.descr + "'; float16 ('<f2') is needed: numpy.save('" + name +
                   "', x.astype(numpy.float16)).");
  if (h.order != "False")
    fail(file,
         "is in Fortran order; C order is needed: numpy.save('" + name + "', numpy.ascontiguousarray(x)).");
  if (h.shape.size() != 4)
    fail(file, "has rank " + std::to_string(h.shape.size()) + ", shape " + shape_text(h.shape) +
                   "; rank 4 is needed: [batch, heads, sequence, dim]" +
                   (h.shape.size() < 4 ? ". Add axes of size 1 with x[None]." : "."));
}

// The number of bytes that a shape takes.
uint64_t data_bytes(const std::vector<int64_t>& shape, uint64_t element_bytes, const std::string& file) {
  uint64_t bytes = element_bytes;
  for (int64_t n : shape)
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(n), &bytes))
      fail(file, "has the shape " + shape_text(shape) + ", which no memory holds.");
  return bytes;
}

void write(const std::string& file, const std::string& descr, const std::vector<int64_t>& sizes,
           const void* values, size_t bytes) {
  std::string shape;
  for (int64_t n : sizes) shape += std::to_string(n) + ", ";
  shape.resize(shape.size() - 2);
  std::string text = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  text.resize((prefix_bytes + 2 + text.size() + 1 + 63) / 64 * 64 - prefix_bytes - 2 - 1,
              ' ');  // data at 64 bytes
  text += '\n';
  const char prefix[] = {'\x93',
                         'N',
                         'U',
                         'M',
                         'P',
                         'Y',
                         1,
                         0,
                         static_cast<char>(text.size() & 0xFF),
                         static_cast<char>(text.size() >> 8)};
  std::ofstream out(file, std::ios::binary);
  out.write(prefix, sizeof prefix);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.write(static_cast<const char*>(values), static_cast<std::streamsize>(bytes));
  out.close();
  if (!out) fail(file, "could not be written in full: " + std::string(std::strerror(errno)) + ".");
}

template <size_t rank>
size_t elements(const std::array<int64_t, rank>& shape) {
  size_t n = 1;
  for (int64_t s : shape) n *= static_cast<size_t>(s);
  return n;
}

}  // namespace

HalfTensor read_half_npy(const std::string& file, Dtype dtype) {
  const uint64_t size = regular_file_size(file);
  std::ifstream in(file, std::ios::binary);
  if (!in) fail(file, "cannot be read: " + std::string(std::strerror(errno)) + ".");
  const Header header = read_header(in, file, size);
  check_header(header, file, dtype);
  const uint64_t need = data_bytes(header.shape, dtype == Dtype::bf16 ? 4 : 2, file), have = size - header.data_begin;
  const std::string sizes = "its shape " + shape_text(header.shape) + " takes " + std::to_string(need) +
                            " bytes of data, and it has " + std::to_string(have) + ".";
  if (have < need) fail(file, "is truncated: " + sizes);
  if (have > need) fail(file, "has trailing bytes: " + sizes);
  HalfTensor tensor;
  std::copy(header.shape.begin(), header.shape.end(), tensor.shape.begin());
  tensor.values.resize(elements(tensor.shape));
  std::vector<float> floats(dtype == Dtype::bf16 ? tensor.values.size() : 0);
  char* data = dtype == Dtype::bf16 ? reinterpret_cast<char*>(floats.data()) : reinterpret_cast<char*>(tensor.values.data());
  in.read(data, static_cast<std::streamsize>(need));
  if (!in) fail(file, "could not be read in full.");
  std::transform(floats.begin(), floats.end(), tensor.values.begin(), attention::to_bfloat16);
  return tensor;
}

void write_npy(const std::string& file, const std::array<int64_t, 4>& shape, const uint16_t* values, Dtype dtype) {
  const size_t n = elements(shape);
  if (dtype == Dtype::fp16) return write(file, "<f2", {shape.begin(), shape.end()}, values, 2 * n);
  std::vector<float> floats(n);
  std::transform(values, values + n, floats.begin(), attention::from_bfloat16);
  write(file, "<f4", {shape.begin(), shape.end()}, floats.data(), 4 * n);
}

void write_npy(const std::string& file, const std::array<int64_t, 3>& shape, const float* values) {
  write(file, "<f4", {shape.begin(), shape.end()}, values, 4 * elements(shape));
}

void check_writable(const std::string& file) {
  const bool existed = fs::exists(file);
  const int descriptor = open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) fail(file, "cannot be written: " + std::string(std::strerror(errno)) + ".");
  close(descriptor);
  if (!existed) unlink(file.c_str());
}

std::string shape_text(const std::array<int64_t, 4>& shape) {
  return shape_text(std::vector<int64_t>(shape.begin(), shape.end()));
}

}  // namespace course
