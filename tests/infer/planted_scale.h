// An error planted into a step in eight bits: products take one tensor's scale to be another than its cast did.
#pragma once

#include "infer/verify.h"
#include "ops/fp8.h"

namespace redline::infer {

// For VerifyOptions::before_step.
inline std::function<void(model::Engine&)> scale_off(std::string tensor, float factor) {
  return [tensor = std::move(tensor), factor](model::Engine& engine) {
    bool found = false;
    for (const model::Fp8Tensor& t : engine.lowered().fp8) {
      if (t.name != tensor) continue;
      found = true;
      ops::Fp8Scale entry;
      engine.executor().read(t.scale, &entry, sizeof entry);
      entry.inverse *= factor;
      engine.executor().write(t.scale, &entry, sizeof entry);
    }
    REDLINE_CHECK(found, "no {} is in eight bits", tensor);
  };
}

}  // namespace redline::infer
