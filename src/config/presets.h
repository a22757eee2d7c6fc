// The files of configs/, compiled into the program so that a preset needs no file beside the binary.
#pragma once

#include <span>
#include <string_view>

namespace redline::config {

struct EmbeddedFile {
  std::string_view name;  // "quick"
  std::string_view text;  // the TOML
};

std::span<const EmbeddedFile> embedded_configs();  // sorted by name; generated from configs/ when building

}  // namespace redline::config
