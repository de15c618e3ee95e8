/// @file
/// The command `timeline`: when the copies, products, softmaxes and waits of one CTA would begin and end, as a picture
/// (SVG) and as a trace for Perfetto.
#include "reference_cpu/simulator/timeline.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <set>

#include "child.h"
#include "command.h"
#include "failure.h"
#include "options.h"
#include "steps.h"
#include "units.h"

namespace course {
namespace {

using nlohmann::json;
using simulator::Span;
using simulator::Timeline;
using Kind = Span::Kind;
using Unit = Span::Unit;

struct TimelineOptions {
  std::vector<std::string> steps;
  ProblemOptions problem;
  std::string figures;
};

// By Span::Kind. Products have the colour of their warpgroup.
struct Look {
  const char *name, *colour;
};
constexpr std::array<Look, 8> looks = {{{"softmax", "#f08c2e"},
                                        {"other arithmetic", "#f9d3a5"},
                                        {"product", ""},
                                        {"copy (pale: latency)", "#3b82c4"},
                                        {"store", "#1f4e79"},
                                        {"waits for a copy", "#b9d6f0"},
                                        {"waits for the tensor core", "#d5e8d4"},
                                        {"waits for other warps", "#d9d9d9"}}};
constexpr const char* product_colours[] = {"#2f855a", "#8059b5", "#b83280", "#0e7490"};  // by warpgroup

const Look& look(Kind kind) { return looks[static_cast<size_t>(kind)]; }

std::string format(const char* pattern, double a, double b = 0, double c = 0, double d = 0) {
  char text[300];
  std::snprintf(text, sizeof text, pattern, a, b, c, d);
  return text;
}

std::string thousands(double value) {
  std::string text = format("%.0f", value);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

std::string model_text() {
  const simulator::Model m;
  return format("The model, an H200's: tensor core %.0f FLOP a clock and SM (mma.sync %.2g of it), who waits for it goes ",
                4 * m.tensor_flops, m.mma_sync_share) +
         format("on %.0f cycles later; exponentials %.0f a clock and SM; %.2g cycles an instruction of a busy warp, ",
                m.tensor_latency, 4 * m.exponentials, m.cycles_an_instruction) +
         format("%.2g instructions an exponential of softmax; copies %.0f bytes a clock after %.0f cycles; ",
                m.instructions_an_exponential, m.copy_bytes, m.copy_latency) +
         format("barriers %.0f cycles.", m.barrier_latency);
}

constexpr const char* caveat =
    "The numbers about instructions are fitted to a profile of step 32, the copies' rate to one of 34; latencies are "
    "guesses. The model leaves out other CTAs on the SM, ordinary loads and stores, ldmatrix, bank conflicts, misses of the "
    "L2, power, and what the compiler moves. It teaches, it does not promise microseconds: absolute times may be off by a "
    "factor of two.";

// --- simulation --------------------------------------------------------------------------------------------------------

json to_rows(const Timeline& timeline) {
  json rows = json::array();
  for (const Span& s : timeline.spans)
    rows.push_back({int(s.kind), int(s.unit), s.number, s.begin, s.end, s.amount, s.warp, s.line});
  return rows;
}

Timeline from_rows(const json& rows) {
  Timeline timeline;
  for (const json& r : rows) {
    timeline.spans.push_back({static_cast<Kind>(r[0]), static_cast<Unit>(r[1]), r[2], r[3], r[4], r[5], r[6], r[7]});
    timeline.end = std::max(timeline.end, timeline.spans.back().end);
  }
  return timeline;
}

// Runs the step in a child process and checks its result, so that what is shown is the life of a right kernel.
Timeline simulate(const Step& step, const Question& question) {
  Setting setting;
  setting.simulator.timeline = true;
  const double limit = 120 + matmul_flops(question.problem) / 6e6;
  const ChildResult child = run_in_child(step.name, limit, [&] {
    const Outcome outcome = check(step.library(Machine::simulated), question, setting);
    return json{{"message", outcome.right() ? "" : outcome.message},
                {"spans", outcome.right() ? to_rows(simulator::replay(simulator::recorded())) : json::array()}};
  });
  if (!child.ok) throw Failure(child.sentence);
  const std::string message = child.value["message"];
  if (!message.empty()) throw Failure(step.name + " shows no timeline: " + message);
  Timeline timeline = from_rows(child.value["spans"]);
  auto has = [&](Kind kind) {
    return std::any_of(timeline.spans.begin(), timeline.spans.end(), [&](const Span& s) { return s.kind == kind; });
  };
  if (!has(Kind::copy) || !has(Kind::product))
    throw Failure(step.name + " has nothing to show: the timeline is about copies that fly beside products, and this step "
                              "starts none (here). Try ./learn timeline 33.",
                  exit_skipped);
  return timeline;
}

// --- files ---------------------------------------------------------------------------------------------------------------

void write(const std::filesystem::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  if (!out.flush()) throw Failure("The file " + file.string() + " cannot be written.");
}

// Perfetto's rows: the copy engine, the tensor cores of the four quadrants, the warps. A cycle is shown as a microsecond.
json trace(const Timeline& timeline, const std::string& title) {
  json events = json::array();
  std::set<int> named;
  for (const Span& s : timeline.spans) {
    const int row = s.unit == Unit::copy_engine ? 0 : s.unit == Unit::tensor ? 1 + s.number : 10 + s.number;
    const std::string name = s.unit == Unit::copy_engine ? "copy engine"
                             : s.unit == Unit::tensor    ? "tensor core, quadrant " + std::to_string(s.number)
                                                         : "warp " + std::to_string(s.number);
    if (named.insert(row).second)
      events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", 1}, {"tid", row}, {"args", {{"name", name}}}});
    json arguments = {{"warp", s.warp}};
    if (s.line) arguments["line"] = "attention.cu:" + std::to_string(s.line);
    if (s.kind == Kind::copy || s.kind == Kind::store) arguments["bytes"] = s.amount;
    if (s.kind == Kind::product) arguments["FLOP"] = s.amount;
    const char* what = s.kind == Kind::copy ? "copy" : look(s.kind).name;
    events.push_back({{"name", what}, {"ph", "X"}, {"pid", 1}, {"tid", row}, {"ts", s.begin}, {"dur", s.end - s.begin},
                      {"args", arguments}});
  }
  return {{"traceEvents", events}, {"otherData", {{"title", title}, {"model", model_text()}, {"note", caveat}}}};
}

// The picture: a panel of its own colour, so that it can be read on light and dark pages.
class Picture {
public:
  Picture(const Timeline& timeline, const std::string& title, const simulator::Steady& steady) : timeline_(timeline) {
    const bool warpgroups = std::none_of(timeline.spans.begin(), timeline.spans.end(), [](const Span& s) {
      return s.unit == Unit::warp && s.kind == Kind::product;  // mma.sync
    });
    std::set<int> workers;  // warps that multiply; of a warpgroup the first
    for (const Span& s : timeline.spans)
      if (s.kind == Kind::product && (!warpgroups || s.warp % 4 == 0)) workers.insert(s.warp);
    text(10, 22, title, "start", 13, "bold");
    row("copies", [](const Span& s) { return s.unit == Unit::copy_engine; });
    row("tensor core", [](const Span& s) { return s.unit == Unit::tensor && s.number == 0; });
    mark(steady);
    for (int w : workers)
      row(warpgroups ? "warpgroup " + std::to_string(w / 4) : "warp " + std::to_string(w),
          [w](const Span& s) { return s.unit == Unit::warp && s.number == w; });
    axis();
    legend();
  }

  std::string svg() const {
    return format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1000\" height=\"%.0f\" viewBox=\"0 0 1000 %.0f\" "
                  "font-family=\"sans-serif\">\n<rect width=\"1000\" height=\"%.0f\" rx=\"6\" fill=\"#fcfcfa\" "
                  "stroke=\"#b0b0b0\"/>\n", y_, y_, y_) +
           body_ + "</svg>\n";
  }

private:
  static constexpr double left = 110, width = 875, cycles = 28000, bar = 22, step = 30;  // pixels, and cycles in `width`
  static double x(double time) { return left + std::min(time, cycles) / cycles * width; }

  void text(double at, double y, const std::string& words, const char* anchor, int size, const char* weight = "normal") {
    body_ += format("<text x=\"%.1f\" y=\"%.1f\" font-size=\"%.0f\" ", at, y, size) + "text-anchor=\"" + anchor +
             "\" font-weight=\"" + weight + "\" fill=\"#222\">" + words + "</text>\n";
  }
  void box(double from, double y, double to, double height, const std::string& colour, double opacity = 1) {
    if (to > from)
      body_ += format("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" ", from, y, to - from, height) +
               format("opacity=\"%.1f\" fill=\"", opacity) + colour + "\"/>\n";
  }

  template <typename Belongs>
  void row(const std::string& name, Belongs belongs) {
    text(left - 8, y_ + 16, name, "end", 12);
    box(left, y_, left + width, bar, "#f0f0ec");
    int copies = 0;
    for (const Span& s : timeline_.spans) {
      if (!belongs(s) || s.begin >= cycles) continue;
      if (s.unit == Unit::copy_engine) {  // two lanes, since one begins while another is under way
        const double y = y_ + copies++ % 2 * bar / 2, landing = s.end - simulator::Model().copy_latency;
        box(x(s.begin), y, x(landing) - 0.6, bar / 2 - 1, look(s.kind).colour);
        box(x(landing) - 0.6, y, x(s.end) - 0.6, bar / 2 - 1, look(s.kind).colour, 0.3);
      } else {
        const std::string colour = s.kind == Kind::product ? product_colours[s.warp / 4 % 4] : look(s.kind).colour;
        box(x(s.begin), y_, x(s.end) - 0.6, bar, colour);
      }
    }
    y_ += step;
  }

  // A line under the tensor core's row, as long as the steady part.
  void mark(const simulator::Steady& s) {
    box(x(s.begin), y_ - 6, x(s.end), 2, "#c53030");
    text((x(s.begin) + x(s.end)) / 2, y_ + 10, format("steady part: %.1f % % idle", 100 * s.idle), "middle", 12);
    y_ += 18;
  }

  void axis() {
    for (double t = 0; t <= cycles; t += 4000) {
      box(x(t), y_ - 4, x(t) + 1, 5, "#555");
      text(x(t), y_ + 13, thousands(t), t < cycles ? "middle" : "end", 11);
    }
    text(left - 8, y_ + 13, "model cycles", "end", 11);
    y_ += 26;
  }

  void legend() {
    std::set<Kind> kinds;
    std::set<int> products;
    for (const Span& s : timeline_.spans) {
      if (s.kind == Kind::product) products.insert(s.warp / 4);
      else if (s.begin < cycles) kinds.insert(s.kind);
    }
    double at = 10;
    auto entry = [&](const std::string& colour, const std::string& name) {
      const double length = 28 + 6.7 * static_cast<double>(name.size());
      if (at + length > 990) at = 10, y_ += 18;
      box(at, y_, at + 12, 12, colour);
      text(at + 17, y_ + 10.5, name, "start", 12);
      at += length;
    };
    for (int w : products)
      entry(product_colours[w % 4], products.size() > 1 ? "products of warpgroup " + std::to_string(w) : "products");
    for (Kind kind : kinds) entry(look(kind).colour, look(kind).name);
    y_ += 24;
  }

  const Timeline& timeline_;
  double y_ = 34;  // where the next row begins
  std::string body_;
};

// --- the command -----------------------------------------------------------------------------------------------------

void show(const Step& step, const Question& question, const std::string& figures) {
  const Timeline timeline = simulate(step, question);
  const simulator::Steady steady = simulator::steady_part(timeline);
  const std::string title = step.name + ", one CTA, " + describe(question.problem);
  const std::string picture = Picture(timeline, title, steady).svg();
  const double whole = 1 - simulator::tensor_busy(timeline, timeline.end) / timeline.end;
  std::printf("%s\n  The tensor core is idle %.1f %% of the steady part (cycles %s to %s), ", title.c_str(),
              100 * steady.idle, thousands(steady.begin).c_str(), thousands(steady.end).c_str());
  std::printf("%.1f %% of the CTA's life (%s cycles).\n", 100 * whole, thousands(timeline.end).c_str());
  if (!figures.empty()) {
    write(std::filesystem::path(figures) / ("timeline-" + step.number() + ".svg"), picture);
    return;
  }
  write("timeline.svg", picture);
  write("trace.json", trace(timeline, title).dump() + "\n");
  std::printf("  Written: timeline.svg, and trace.json for https://ui.perfetto.dev (its microseconds are cycles).\n");
}

int timeline(TimelineOptions o) {
  if (o.figures.empty() && find_steps(o.steps).size() != 1)
    throw Failure("timeline.svg shows one step; name exactly one, or say --figures FOLDER.");
  ProblemOptions& p = o.problem;
  if (!p.from_files()) {
    if (!p.batch) p.batch = "1";
    if (!p.heads) p.heads = "1";
    if (!p.dim) p.dim = "128";
    if (!p.seq) p.seq = "1024";  // --seq-q and --seq-k come after it
  }
  Given given = read_problem(p, Machine::simulated);
  const attention::Problem problem = given.problem;
  const Question question = ask(problem, std::move(given.inputs));
  for (const Step& step : find_steps(o.steps)) show(step, question, o.figures);
  std::printf("\nSteady part: while the second and the third quarter of the products are done.\n%s\n%s\n",
              model_text().c_str(), caveat);
  return exit_right;
}

}  // namespace

void add_timeline(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<TimelineOptions>();
  CLI::App* command = app.add_subcommand(
      "timeline", "When one CTA copies, multiplies, computes and waits: timeline.svg, trace.json; no GPU needed");
  command->add_option("step", o->steps, "The step, by number or name")->required();
  command->add_option("--figures", o->figures, "Write FOLDER/timeline-NN.svg instead, for any number of steps");
  o->problem.add_to(*command);
  command->callback([o, &chosen] { chosen = [o] { return timeline(*o); }; });
}

}  // namespace course
