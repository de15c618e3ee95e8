/// @file
/// Places in a kernel's source: 22 bits that name a program counter or a call site, and their words.
#include <cstdio>
#include <cstring>
#include <map>

#include "machine.h"

namespace simulator {
namespace {

constexpr uint32_t site_flag = 1u << 21, unknown = site_flag - 1;  // a site has at most 20 bits, and atomic_place
std::vector<Site> sites;

// The step's folder is part of the name: every step has an attention.cu.
std::string short_path(const std::string& path) {
  size_t slash = path.rfind('/');
  if (slash == std::string::npos || slash == 0) return path;
  slash = path.rfind('/', slash - 1);
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

}  // namespace

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

uint32_t place_of(const void* program_counter) {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(program_counter) - 1 - machine.module_base;
  return offset < unknown ? static_cast<uint32_t>(offset) : unknown;
}

uint32_t place_of(Site site) {
  static Site last{};
  static uint32_t last_place = 0;
  if (site.line == last.line && site.file == last.file) return last_place;
  size_t i = 0;
  while (i < sites.size() && (sites[i].line != site.line || sites[i].file != site.file)) ++i;
  if (i == sites.size()) sites.push_back(site);
  last = site;
  return last_place = site_flag | static_cast<uint32_t>(i);
}

std::string describe_place(uint32_t place) {
  if (place & site_flag) {
    const Site& site = sites[place & ~(site_flag | atomic_place)];
    return short_path(site.file) + ":" + std::to_string(site.line);
  }
  if (place == unknown) return "an unknown line";
  static std::map<std::pair<std::string, uint32_t>, std::string> known;
  std::string& words = known[{machine.module_file, place}];
  if (!words.empty()) return words;
  char command[4600], line[4096] = "";
  std::snprintf(command, sizeof command, "addr2line -e '%s' 0x%x 2>/dev/null", machine.module_file.c_str(), place);
  if (FILE* pipe = popen(command, "r")) {
    if (!std::fgets(line, sizeof line, pipe)) line[0] = 0;
    pclose(pipe);
  }
  line[std::strcspn(line, " \n")] = 0;
  const bool found = line[0] && line[0] != '?';
  return words = found ? short_path(line) : base_name(machine.module_file.c_str()) + std::string(" at an unknown line");
}

std::string describe_thread(const Thread& thread) {
  std::string text = std::string(machine.launch->name) + ", CTA " + std::to_string(thread.cta->number) + ", warp " +
                     std::to_string(thread.warp()) + ", lane " + std::to_string(thread.lane());
  return text;
}

}  // namespace simulator
