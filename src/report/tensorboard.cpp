// The wire format by hand, and when a run writes what; report/metrics.h has the tags.
#include "report/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>

#include "base/clock.h"
#include "config/load.h"
#include "data/utf8.h"
#include "report/console.h"
#include "report/metrics.h"

namespace redline::report::tensorboard {
namespace {

std::array<std::uint32_t, 256> crc_table() {
  constexpr std::uint32_t kCastagnoli = 0x82F63B78;  // reflected
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kCastagnoli : 0);
    table[byte] = crc;
  }
  return table;
}

void put_little_endian(std::string& to, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to.push_back(static_cast<char>(value >> (8 * i)));
}

void put_checksum(std::string& to, std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  put_little_endian(to, std::uint32_t{(crc >> 15) | (crc << 17)} + std::uint32_t{0xA282EAD8}, 4);
}

class Message {
 public:
  Message& integer(int field, std::uint64_t value) {
    key(field, 0);
    varint(value);
    return *this;
  }
  Message& real(int field, double value) {
    key(field, 1);
    put_little_endian(bytes_, std::bit_cast<std::uint64_t>(value), 8);
    return *this;
  }
  Message& single(int field, double value) {
    key(field, 5);
    put_little_endian(bytes_, std::bit_cast<std::uint32_t>(static_cast<float>(value)), 4);
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return bytes(field, value.bytes_); }
  Message& reals(int field, std::span<const double> values) {
    std::string packed;
    for (const double v : values) put_little_endian(packed, std::bit_cast<std::uint64_t>(v), 8);
    return bytes(field, packed);
  }
  std::string take() { return std::move(bytes_); }

 private:
  void key(int field, int kind) { varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(kind)); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }

  std::string bytes_;
};

// Numbers of the fields, as event.proto, summary.proto and tensor.proto have them.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr int kSessionStatus = 1, kSessionStart = 1;
constexpr int kValue = 1, kTag = 1, kSimpleValue = 2, kHistogram = 5, kTensor = 8, kMetadata = 9;

Message event(double time, std::int64_t step) {
  return Message().real(kWallTime, time).integer(kStep, static_cast<std::uint64_t>(step));
}

std::string summary_event(double time, std::int64_t step, const Message& summary) {
  return event(time, step).message(kSummary, summary).take();
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = crc_table();
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) crc = table[(crc ^ static_cast<unsigned char>(c)) & 0xFF] ^ (crc >> 8);
  return crc ^ 0xFFFFFFFF;
}

std::string record(std::string_view message) {
  std::string out;
  put_little_endian(out, message.size(), 8);
  put_checksum(out, std::string(out));
  out += message;
  put_checksum(out, message);
  return out;
}

std::string version_event(double time) {
  return Message().real(kWallTime, time).bytes(kFileVersion, "brain.Event:2").take();
}

std::string restart_event(double time, std::int64_t step) {
  return event(time, step).message(kSessionLog, Message().integer(kSessionStatus, kSessionStart)).take();
}

std::string scalars_event(double time, std::int64_t step, std::span<const Scalar> scalars) {
  Message summary;
  for (const auto& [tag, value] : scalars)
    summary.message(kValue, Message().bytes(kTag, tag).single(kSimpleValue, value));
  return summary_event(time, step, summary);
}

std::string text_event(double time, std::int64_t step, std::string_view tag, std::string_view markdown) {
  constexpr int kPluginData = 1, kPluginName = 1, kDataClass = 4, kClassTensor = 2;
  constexpr int kType = 1, kShape = 2, kStrings = 8, kTypeString = 7;
  const Message metadata =
      Message().message(kPluginData, Message().bytes(kPluginName, "text")).integer(kDataClass, kClassTensor);
  const Message tensor = Message().integer(kType, kTypeString).message(kShape, {}).bytes(kStrings, markdown);
  return summary_event(
      time, step,
      Message().message(kValue, Message().bytes(kTag, tag).message(kTensor, tensor).message(kMetadata, metadata)));
}

std::string histogram_event(double time, std::int64_t step, std::string_view tag, std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  double sum = 0, squares = 0;
  for (const double v : sorted) sum += v, squares += v * v;
  // Limits are upper ends; the first is just above the least, so that no bucket before it is needed.
  std::vector<double> limits, counts;
  double limit = std::max(sorted.front(), 1e-12);
  for (const double v : sorted) {
    while (limits.empty() || v > limits.back()) {
      limits.push_back(limit);
      counts.push_back(0);
      limit *= 1.1;
    }
    counts.back() += 1;
  }
  const Message histogram = Message()
                                .real(1, sorted.front())
                                .real(2, sorted.back())
                                .real(3, static_cast<double>(sorted.size()))
                                .real(4, sum)
                                .real(5, squares)
                                .reals(6, limits)
                                .reals(7, counts);
  return summary_event(time, step,
                       Message().message(kValue, Message().bytes(kTag, tag).message(kHistogram, histogram)));
}

}  // namespace redline::report::tensorboard

namespace redline::report {
namespace {

constexpr std::size_t kStepsAHistogram = 100;
constexpr std::string_view kPrefix = "events.out.tfevents.";

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] ? name : "localhost";
}

// TensorBoard reads the files of a folder in the order of their names, so a later session must have a later second.
std::int64_t second_after_all(FileSystem& files, const Path& folder) {
  auto second = static_cast<std::int64_t>(unix_seconds());
  for (const std::string& name : files.list(folder)) {
    std::int64_t other = 0;
    if (!name.starts_with(kPrefix)) continue;
    const char* digits = name.data() + kPrefix.size();
    if (std::from_chars(digits, name.data() + name.size(), other).ec == std::errc())
      second = std::max(second, other + 1);
  }
  return second;
}

// The fence is longer than any within: what a model wrote may hold one.
std::string fenced(std::string_view kind, std::string_view text) {
  std::string fence = "```";
  while (text.find(fence) != text.npos) fence += '`';
  return fmt::format("{}{}\n{}\n{}\n", fence, kind, text, fence);
}

using tensorboard::record;

using Named = std::pair<std::string, double>;

std::vector<Named> named_of(const train::StepMetrics& m) {
  std::vector<Named> all;
  for (const NamedMetric& metric : kNamedMetrics)
    for (const auto& [name, value] : metric.read(m))
      all.emplace_back(fmt::format("{}/{}", metric.tag, data::replace_bad_utf8(name)), value);
  return all;
}

}  // namespace

void TensorboardFile::start(const train::RunHeader& h) {
  if (h.nothing_left()) return;  // nothing left to do: no file of nothing
  step_ = h.first_step;
  step_times_.clear();
  file_.open(folder_ /
             fmt::format("{}{:010}.{}.{}", kPrefix, second_after_all(files_, folder_), host_name(), ::getpid()));
  const double now = unix_seconds();
  std::string lines;
  for (const std::string& line : header_lines(h)) lines += (lines.empty() ? "" : "\n") + line;
  // Void from step 0 on too: a run that starts over voids all of what was there.
  file_.write(record(tensorboard::version_event(now)) +
              record(tensorboard::restart_event(now, h.first_step == 0 ? 0 : h.first_step + 1)) +
              record(tensorboard::text_event(now, h.first_step, "run", fenced("", lines))) +
              record(tensorboard::text_event(now, h.first_step, "config", fenced("toml", config::dump(*h.config)))));
}

// An event is one piece of the file: it may come again when that fails.
void TensorboardFile::step(const train::StepMetrics& m) {
  if (m.step > step_) step_times_.push_back(m.step_ms);
  step_ = m.step;
  std::vector<tensorboard::Scalar> scalars;
  for (const Metric& metric : kMetrics)
    if (const auto value = number_of(metric, m); value && !metric.tag.empty()) scalars.emplace_back(metric.tag, *value);
  const std::vector<Named> named = named_of(m);
  for (const auto& [tag, value] : named) scalars.emplace_back(tag, value);
  const bool spread = step_times_.size() >= kStepsAHistogram;
  file_.write(record(tensorboard::scalars_event(m.time, m.step, scalars)) + (spread ? histogram(m.time) : ""));
  if (spread) step_times_.clear();
}

// A tag a prompt, so that one can be followed over the steps.
void TensorboardFile::samples(const train::Sampled& sampled) {
  std::string records;
  int number = 0;
  for (const auto& [prompt, text] : sampled.texts) {
    const std::string markdown =
        fenced("", data::replace_bad_utf8(prompt)) + "\n" + fenced("", data::replace_bad_utf8(text));
    records +=
        record(tensorboard::text_event(sampled.time, sampled.step, fmt::format("samples/{}", ++number), markdown));
  }
  file_.write(records);
}

std::string TensorboardFile::histogram(double time) {
  if (step_times_.empty()) return "";
  return record(tensorboard::histogram_event(time, step_, "speed/step_ms_spread", step_times_));
}

void TensorboardFile::on(const train::Event& event) {
  if (const auto* started = std::get_if<train::Started>(&event)) return start(*started);
  if (!file_.opened()) return;
  const auto close = [&] {
    file_.write(histogram(unix_seconds()));
    step_times_.clear();
    file_.sync();
  };
  hear(
      event, [&](const train::Stepped& e) { step(e); }, [&](const train::Sampled& e) { samples(e); },
      // Evaluations after a step come with the step's row; the one before the first has none.
      [&](const train::Evaluated& e) {
        if (e.step != 0) return;
        const train::StepMetrics m = as_step(e);
        const std::vector<Named> named = named_of(m);
        std::vector<tensorboard::Scalar> scalars;
        for (const Column c : {Column("eval_loss"), Column("eval_bits_per_byte")})
          if (const auto value = number_of(kMetrics[c.index], m)) scalars.emplace_back(kMetrics[c.index].tag, *value);
        for (const auto& [tag, value] : named) scalars.emplace_back(tag, value);
        file_.write(record(tensorboard::scalars_event(e.time, e.step, scalars)));
      },
      [&](const train::Skipped& e) {
        file_.write(record(tensorboard::text_event(e.time, e.step, "guard", fenced("", e.text))));
      },
      [&](const train::RolledBack& e) {
        step_ = e.to;
        step_times_.clear();
        file_.write(record(tensorboard::restart_event(e.time, e.to + 1)) +
                    record(tensorboard::text_event(e.time, e.to, "guard", fenced("", e.text))));
      },
      [&](const train::BeforeCheckpoint&) { file_.sync(); }, [&](const train::Finished&) { close(); },
      [&](const train::Failed&) { close(); });
}

}  // namespace redline::report
