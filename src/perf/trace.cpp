// Writes the trace as JSON: complete events ("X"), times in microseconds.
#include "perf/trace.h"

#include <nlohmann/json.hpp>

namespace redline::perf {

std::string chrome_trace(const Profile& profile) {
  using Json = nlohmann::ordered_json;
  constexpr int kProcess = 1, kThread = 1;
  Json events = Json::array();
  const auto name = [&](const char* what, const std::string& value) {
    events.push_back({{"name", what}, {"ph", "M"}, {"pid", kProcess}, {"tid", kThread}, {"args", {{"name", value}}}});
  };
  name("process_name", "redline");
  name("thread_name", profile.device);
  for (const Span& span : profile.spans) {
    const TimedWork& node = profile.nodes[static_cast<std::size_t>(span.node)];
    events.push_back({{"name", node.name},
                      {"cat", node.op},
                      {"ph", "X"},
                      {"ts", 1e6 * span.begin},
                      {"dur", 1e6 * (span.end - span.begin)},
                      {"pid", kProcess},
                      {"tid", kThread},
                      {"args", {{"step", span.step}, {"phase", node.phase}}}});
  }
  return Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump(-1, ' ', false,
                                                                                  Json::error_handler_t::replace) +
         "\n";
}

}  // namespace redline::perf
