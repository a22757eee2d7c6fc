// An op's two backends as expect_agreement (testing/card_check.h) takes them. Only for tests under a cuda/ folder.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cuda/kernels.h"
#include "testing/card_check.h"

namespace redline::ops {

using namespace redline::testing;

inline constexpr auto kOnCpu = [](auto& op, auto& pool) { cpu::run(op, pool); };
inline constexpr auto kOnCard = [](auto& op, auto& launch) { cuda::run(op, launch); };

}  // namespace redline::ops
