// Sections of docs/monitoring.md, as warnings and errors name them. A test holds that each one is there.
#pragma once

#include <string_view>

namespace redline::troubleshooting {

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
inline constexpr std::string_view kDeadModel = "docs/monitoring.md#a-model-that-does-not-learn";
inline constexpr std::string_view kFp8Range = "docs/monitoring.md#a-tensor-that-leaves-the-range-of-fp8";
inline constexpr std::string_view kGraphs = "docs/monitoring.md#no-cuda-graphs";
inline constexpr std::string_view kCudnn = "docs/monitoring.md#no-cudnn";

}  // namespace redline::troubleshooting
