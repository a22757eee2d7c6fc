// The products of a program as a card's library would compute them, one by one.
#include "perf/fp8_choice.h"

#include "device/cuda/device.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/grouped_tiles.h"
#include "program/program.h"

namespace redline::perf {
namespace {

// Where an operand would lie in an arena at this address: nothing is read there, only its alignment counts.
constexpr std::uintptr_t kArena = std::uintptr_t{1} << 40;

template <class Op>
concept IsProduct = requires(const Op& op) {
  ops::cuda::product(op);
};
// Of experts: no library's, so nothing is chosen by time; who asks has what the machine is expected to need.
template <class Op>
concept IsGrouped = requires(const Op& op) {
  ops::cuda::hopper_why_not(op, std::declval<const device::cuda::Launch&>());
};

std::string without_fp8(const device::cuda::Launch& launch) {
  return fmt::format("a card of compute capability {}.{} has no fp8", launch.major, launch.minor);
}

}  // namespace

TimeNodes time_on_card(device::Device& device) {
  const device::cuda::Launch launch = static_cast<device::CudaDevice&>(device).launch();
  return [launch](const program::ProgramSet& set, std::span<const program::Node* const> nodes, bool timed) {
    const auto tensor = [&](std::string_view, program::ValueId id, Access) {
      if (!id.present()) return Tensor{};
      const auto at = kArena + static_cast<std::uintptr_t>(set.memory.offsets[static_cast<std::size_t>(id.index)]);
      return Tensor{reinterpret_cast<void*>(at), set.at(id).dtype, set.at(id).shape};
    };
    std::vector<NodeSeconds> times;
    for (const program::Node* node : nodes) {
      NodeSeconds& time = times.emplace_back();
      std::visit(
          [&](const auto& op) {
            const auto bound = op.map(tensor);
            if constexpr (IsProduct<decltype(bound)>) {
              const ops::cuda::Gemm g = ops::cuda::product(bound);
              if (is_fp8(g.input) && !device::has_fp8(launch.major, launch.minor)) {
                time.problem = without_fp8(launch);
              } else {
                const ops::cuda::ProductTime measured = ops::cuda::time_of(g, launch, timed);
                time = {measured.seconds, measured.problem};
              }
            } else if constexpr (IsGrouped<decltype(bound)>) {
              constexpr bool kInFp8 = requires { bound.a_scale; }
              || requires { bound.dy_scale; };
              if (kInFp8 && !device::has_fp8(launch.major, launch.minor)) time.problem = without_fp8(launch);
            } else {
              fail_machine("{} is no product", node->full_name());
            }
          },
          node->op);
    }
    if (timed) ops::cuda::keep_tuning(launch);
    return times;
  };
}

}  // namespace redline::perf
