// The place where each key of a configuration was set, so that a rule over several keys, or a check against the data,
// can still point at a line.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

namespace redline::config {

inline constexpr std::string_view kCommandLine = "on the command line";

class Origins {
 public:
  // `shipped`: by a preset, which the user chose but did not write.
  void set(std::string_view key, std::string place, bool shipped = false) {
    places_[std::string(key)] = {std::move(place), ++count_, shipped};
  }

  // Whether the user wrote the key, in a file or on the command line.
  bool written(std::string_view key) const {
    const auto it = places_.find(key);
    return it != places_.end() && !it->second.shipped;
  }

  bool on_command_line(std::string_view key) const {
    const auto it = places_.find(key);
    return it != places_.end() && it->second.text == kCommandLine;
  }

  // "configs/x.toml:12: " for whichever of the keys was set last; empty when all of them are defaults.
  std::string prefix(std::initializer_list<std::string_view> keys) const;

  // Where values came from does not make two configurations different.
  bool operator==(const Origins&) const { return true; }

 private:
  struct Place {
    std::string text;
    int order = 0;
    bool shipped = false;
  };
  std::map<std::string, Place, std::less<>> places_;
  int count_ = 0;
};

}  // namespace redline::config
