// The list of families: adding a model is its file and its entry here.
#include "model/family.h"

namespace redline::model {
namespace {
constexpr const Family* kFamilies[] = {&kLlama, &kQwen3};
}

std::span<const Family* const> families() { return kFamilies; }

const Family& family_of(const config::Model& model) {
  for (const Family* f : kFamilies)
    if (f->name == model.family) return *f;
  fail_user("model.family = \"{}\" is unknown; families are llama and qwen3", model.family);
}

}  // namespace redline::model
