// Parts of sentences for a person: counts with their nouns, text from outside that is safe on a terminal, and the
// sections of the documentation that warnings name.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <string>
#include <string_view>

namespace redline {

// The noun of a count that is formatted elsewhere, as in "4,012,345 tokens". `noun` is the singular.
template <class Number>
std::string noun_for(Number n, std::string_view noun) {
  if (n == Number{1}) return std::string(noun);
  const bool takes_es = noun.ends_with('s') || noun.ends_with('x') || noun.ends_with("ch") || noun.ends_with("sh");
  return std::string(noun) + (takes_es ? "es" : "s");
}

template <std::integral Number>
std::string counted(Number n, std::string_view noun) {
  return fmt::format("{} {}", n, noun_for(n, noun));
}

// Text from outside (file names, keys, a model's output) on its way to a person. Control characters, invalid UTF-8 and
// marks of writing direction, which would steer a terminal, become "\x1b" and "\u202e"; newlines and tabs stay.
std::string visible(std::string_view text);

// Sections of docs/monitoring.md, as warnings and errors name them. A test holds that each one is there.
namespace troubleshooting {
inline constexpr std::string_view kOutOfMemory = "docs/monitoring.md#out-of-memory";
inline constexpr std::string_view kUnusedMemory = "docs/monitoring.md#unused-memory";
inline constexpr std::string_view kSlowData = "docs/monitoring.md#slow-data";
inline constexpr std::string_view kPadding = "docs/monitoring.md#padding";
inline constexpr std::string_view kSlowSteps = "docs/monitoring.md#slow-steps";
inline constexpr std::string_view kLowMfu = "docs/monitoring.md#low-mfu";
inline constexpr std::string_view kShapes = "docs/monitoring.md#shapes-that-are-slow";
inline constexpr std::string_view kFrequent = "docs/monitoring.md#evaluations-and-saves-that-cost-much";
inline constexpr std::string_view kSlowRank = "docs/monitoring.md#a-slow-rank";
inline constexpr std::string_view kThrottling = "docs/monitoring.md#a-gpu-that-throttles";
inline constexpr std::string_view kNotFinite = "docs/monitoring.md#a-loss-that-is-not-finite";
inline constexpr std::string_view kSpikes = "docs/monitoring.md#a-spike-of-the-gradient";
inline constexpr std::string_view kOverfitting = "docs/monitoring.md#a-held-out-loss-that-rises";
inline constexpr std::string_view kDeadModel = "docs/monitoring.md#a-model-that-does-not-learn";
inline constexpr std::string_view kFp8Range = "docs/monitoring.md#a-tensor-that-leaves-the-range-of-fp8";
inline constexpr std::string_view kExperts = "docs/monitoring.md#experts-that-starve-or-take-all";
inline constexpr std::string_view kGraphs = "docs/monitoring.md#no-cuda-graphs";
inline constexpr std::string_view kCudnn = "docs/monitoring.md#no-cudnn";
}  // namespace troubleshooting

}  // namespace redline
