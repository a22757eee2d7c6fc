// Megatron's pairs: one input is the index and then the ids.
#include "token_source.h"

namespace redline::fuzz {

std::vector<std::string> seeds() {
  const auto raw = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  };
  const auto index = [&](char type, const std::vector<std::int32_t>& lengths, const std::vector<std::int64_t>& pointers,
                         const std::vector<std::int64_t>& bounds) {
    return std::string("MMIDIDX\0\0", 9) + raw(std::vector<std::uint64_t>{1}) + std::string(1, type) +
           raw(std::vector<std::uint64_t>{lengths.size(), bounds.size()}) + raw(lengths) + raw(pointers) + raw(bounds);
  };
  return {
      join({index(8, {2, 1, 0, 3}, {0, 4, 6, 6}, {0, 2, 2, 3, 4}), raw(std::vector<std::uint16_t>{1, 2, 3, 4, 5, 6})}),
      join({index(4, {1, 1}, {0, 4}, {0, 1, 2}), raw(std::vector<std::int32_t>{70000, 1})}),
      join({index(5, {1}, {0}, {0, 1}) + "\1", raw(std::vector<std::int64_t>{7})}),
      join({index(1, {3}, {0}, {0, 1}), "abc"})};
}

}  // namespace redline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace redline;
  const auto parts = fuzz::split(fuzz::text_of(data, size), 2);
  fuzz::write_scratch("m.idx", parts[0]);
  fuzz::write_scratch("m.bin", parts[1]);
  fuzz::open_and_read(fuzz::scratch("m.bin"), size);
  return 0;
}
