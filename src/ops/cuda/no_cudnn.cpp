// Attention by cuDNN where it was not built: the headers of cuDNN and of its frontend were not there.
#include "base/error.h"
#include "ops/cuda/attention_backends.h"

namespace redline::ops::cuda {

std::string cudnn_version() { return ""; }
std::string cudnn_problem() { return "this program was built without the headers of cuDNN and its frontend"; }
std::string cudnn_why_not(const AttentionCase&) { return cudnn_problem(); }
void cudnn_forward(const Attention<Tensor>&, const Launch&) { fail_machine("cudnn_forward: {}", cudnn_problem()); }
void cudnn_backward(const AttentionGrad<Tensor>&, const Launch&) {
  fail_machine("cudnn_backward: {}", cudnn_problem());
}

}  // namespace redline::ops::cuda
