// Parts of a run that tests of this folder share.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/files.h"
#include "io/json.h"
#include "train/observer.h"

namespace redline::report {

// The start of a run, and what it refers to.
struct SmallRun {
  config::Config config;
  program::MemoryPlan memory;
  train::RunHeader header;

  explicit SmallRun(std::int64_t steps = 50, std::int64_t first_step = 0) {
    config.model.head_dim = 64;
    config.model.kv_heads = 4;
    memory.device.by_role[static_cast<int>(program::Role::parameter)] = 300 << 20;
    memory.device.by_role[static_cast<int>(program::Role::activation)] = 100 << 20;
    memory.device.by_role[static_cast<int>(program::Role::output)] = 4096;
    memory.device.total = 400 << 20;
    header.config = &config;
    header.folder = "runs/a";
    header.device = "CPU (2 threads)";
    header.data = "ping (generated)";
    header.parameters = 4'934'912;
    header.steps = steps;
    header.first_step = first_step;
    header.tokens_per_step = 2048;
    header.memory = &memory;
    header.peak_flops = 104e9;
    header.peak_source = "measured";
  }
};

inline train::StepMetrics small_step(std::int64_t step) {
  train::StepMetrics m;
  m.step = step;
  m.time = 1.7e9 + 0.123456 * static_cast<double>(step);
  m.loss = 1.0 / 3;
  m.grad_norm = 0.1;
  m.lr = 3e-4;
  m.step_ms = 152.3;
  m.tokens = 2045;
  m.tokens_per_s = 13400;
  return m;
}

inline std::vector<io::Json> rows_in(const Path& path) {
  std::vector<io::Json> rows;
  const std::string text = real_files().read(path);
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1)
    rows.push_back(io::parse_json(text.substr(at, end - at), "row"));
  return rows;
}

inline bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// A stream that can be read back.
class Captured {
 public:
  Captured() : stream_(::open_memstream(&text_, &size_)) {}
  ~Captured() {
    std::fclose(stream_);
    std::free(text_);
  }
  std::FILE* stream() const { return stream_; }
  std::string text() const {
    std::fflush(stream_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* stream_;
};

}  // namespace redline::report
