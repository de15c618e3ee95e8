/// @file
/// What the built libraries show to each other. Kernels are compiled with hooks, the simulator and the
/// program without; both contain the same inline functions of the standard library, of which a linker keeps
/// one. Checked here, in the tables that the dynamic linker reads:
/// 1. a step's library defines the three functions of its C interface and nothing else, a module of the tests
///    flash_* functions alone;
/// 2. a library with hooks does call them, and asks for no function of which the simulator or the program has
///    an exchangeable (weak or unique) copy, nor defines one;
/// 3. the program and the tests call no hooks, and nobody loads a sanitizer's runtime.
/// Not checked: within one library, inline functions that a kernel shares with the static library
/// `reference`.
#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

const fs::path bin = FLASH_BIN;

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe);
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
  REQUIRE_MESSAGE(pclose(pipe) == 0, command);
  return text;
}

// The dynamic symbols of a program or library.
struct Symbols {
  std::set<std::string> defined, exchangeable,
      wanted;  // exchangeable: the defined that may yield to another's copy
  explicit Symbols(const fs::path& file) {
    std::istringstream lines(output_of("nm -D --without-symbol-versions '" + file.string() + "'"));
    for (std::string line; std::getline(lines, line);) {
      const size_t name = line.rfind(' ');
      const char type = line.at(name - 1);
      if (type == 'U' || type == 'w' || type == 'v') {
        wanted.insert(line.substr(name + 1));
      } else {
        defined.insert(line.substr(name + 1));
        if (type == 'W' || type == 'V' || type == 'u') exchangeable.insert(line.substr(name + 1));
      }
    }
  }
  bool calls_hooks() const {
    for (const std::string& name : wanted)
      if (name.starts_with("__tsan_read") || name.starts_with("__tsan_write")) return true;
    return false;
  }
};

std::vector<fs::path> libraries(const char* folder, const std::string& ending) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(bin / folder))
    if (entry.path().filename().string().ends_with(ending)) found.push_back(entry.path());
  return found;
}

// Names that the two could exchange.
std::set<std::string> shared(const Symbols& with_hooks, const Symbols& without) {
  std::set<std::string> both;
  for (const std::string& name : without.exchangeable)
    if (with_hooks.wanted.count(name) || with_hooks.defined.count(name)) both.insert(name);
  return both;
}

bool loads_a_sanitizer(const fs::path& file) {
  const std::string text = output_of("objdump -p '" + file.string() + "'");
  return text.find("NEEDED               libtsan") != text.npos ||
         text.find("NEEDED               libubsan") != text.npos;
}

const std::set<std::string> step_interface = {"flash_attention", "flash_kernels", "flash_precision", "flash_quantized",
                                              "flash_workspace_bytes"};

}  // namespace

TEST_CASE("a step's library defines its C interface and nothing else") {
  for (const char* ending : {".simulated.so", ".gpu.so"})
    for (const fs::path& library : libraries("steps", ending)) {
      CAPTURE(library.string());
      CHECK(Symbols(library).defined == step_interface);
    }
  CHECK(!libraries("steps", ".simulated.so").empty());
  for (const char* ending : {".simulated.so", ".gpu.so"})
    for (const fs::path& library : libraries("tests", ending))
      for (const std::string& name : Symbols(library).defined) {
        CAPTURE(library.string());
        CAPTURE(name);
        CHECK(name.starts_with("flash_"));
      }
}

TEST_CASE("libraries with hooks call them and exchange no code with those without") {
  const Symbols simulator(bin / "libsimulator.so"), program(bin / "course");
  CHECK(!simulator.exchangeable.empty());  // else the next checks say nothing
  for (const char* folder : {"steps", "tests"})
    for (const fs::path& library : libraries(folder, ".simulated.so")) {
      CAPTURE(library.string());
      const Symbols symbols(library);
      CHECK(symbols.calls_hooks());
      CHECK(!loads_a_sanitizer(library));
      CHECK(symbols.exchangeable.empty());
      for (const Symbols* other : {&simulator, &program})
        for (const std::string& name : shared(symbols, *other)) {
          CAPTURE(name);
          CHECK(false);
        }
    }
}

TEST_CASE("neither the program nor the simulator is compiled with hooks") {
  for (const fs::path& file : {bin / "course", bin / "libsimulator.so"}) {
    CAPTURE(file.string());
    CHECK(!Symbols(file).calls_hooks());
    CHECK(!loads_a_sanitizer(file));
  }
}

TEST_CASE("a library without exports.map is found out") {
  const Symbols leaky(bin / "tests" / "libleaky.so"), simulator(bin / "libsimulator.so");
  CHECK(leaky.calls_hooks());
  CHECK(leaky.defined != step_interface);
  CHECK(!leaky.exchangeable.empty());
  CHECK(!shared(leaky, simulator).empty());
}
