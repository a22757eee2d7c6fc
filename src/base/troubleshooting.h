// Sections of docs/troubleshooting.md, as warnings and errors name them. A test holds that each one is there.
#pragma once

#include <string_view>

namespace redline::troubleshooting {

inline constexpr std::string_view kOutOfMemory = "docs/troubleshooting.md#out-of-memory";
inline constexpr std::string_view kUnusedMemory = "docs/troubleshooting.md#unused-memory";
inline constexpr std::string_view kSlowData = "docs/troubleshooting.md#slow-data";
inline constexpr std::string_view kPadding = "docs/troubleshooting.md#padding";
inline constexpr std::string_view kSlowSteps = "docs/troubleshooting.md#slow-steps";
inline constexpr std::string_view kLowMfu = "docs/troubleshooting.md#low-mfu";
inline constexpr std::string_view kShapes = "docs/troubleshooting.md#shapes-that-are-slow";
inline constexpr std::string_view kFrequent = "docs/troubleshooting.md#evaluations-and-saves-that-cost-much";
inline constexpr std::string_view kSlowRank = "docs/troubleshooting.md#a-slow-rank";
inline constexpr std::string_view kThrottling = "docs/troubleshooting.md#a-gpu-that-throttles";
inline constexpr std::string_view kNotFinite = "docs/troubleshooting.md#a-loss-that-is-not-finite";
inline constexpr std::string_view kDeadModel = "docs/troubleshooting.md#a-model-that-does-not-learn";
inline constexpr std::string_view kFp8Range = "docs/troubleshooting.md#a-tensor-that-leaves-the-range-of-fp8";
inline constexpr std::string_view kGraphs = "docs/troubleshooting.md#no-cuda-graphs";
inline constexpr std::string_view kCudnn = "docs/troubleshooting.md#no-cudnn";

}  // namespace redline::troubleshooting
