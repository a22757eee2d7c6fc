// The wire format by hand: a message is fields, a field is its number and kind, then its bytes.
#include "report/tensorboard_events.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

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
