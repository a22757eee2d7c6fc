// Headerless ids, and the decision which kind a .bin file is.
#include "token_source.h"

namespace redline::fuzz {

std::vector<std::string> seeds() {
  const std::uint16_t ids[] = {1, 2, 50256, 50256, 3, 50256, 4};
  std::string no_end;
  for (int i = 0; i < 300; ++i) no_end += {static_cast<char>(i % 65), '\0'};
  return {{reinterpret_cast<const char*>(ids), sizeof(ids)}, no_end, std::string("\1\0", 2)};
}

}  // namespace redline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace redline;
  fuzz::write_scratch("a.bin", fuzz::text_of(data, size));
  for (const data::Part part : {data::Part::all, data::Part::training, data::Part::held_out})
    fuzz::open_and_read(fuzz::scratch("a.bin"), size, part);
  return 0;
}
