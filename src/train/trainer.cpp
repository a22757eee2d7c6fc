// Puts a step loop and a run folder together.
#include "train/trainer.h"

#include "base/error.h"
#include "base/words.h"
#include "device/device.h"
#include "model/lowering.h"
#include "model/state_files.h"
#include "train/checkpoint.h"
#include "train/memory_advice.h"
#include "train/run_folder.h"

namespace redline::train {
namespace {

// The same steps on a rank that does not lead, without a folder or events of its own.
TrainResult follow_rank_0(const TrainOptions& options, device::Device& device, FileSystem& files) {
  RankFolder folder(options, files);
  StepLoop loop(options, device, files, folder);
  if (!folder.resume(loop)) loop.load_start();
  if (!loop.trains()) return {options.dry_run ? Outcome::dry_run : Outcome::already_finished, loop.step(), {}};
  loop.require_memory();
  require_shared_folder(*options.team.communicator, options.folder, files);
  return loop.run();
}

}  // namespace

// A run that cannot start leaves no file: weights of a checkpoint or of model.init_from are in memory before
// anything is written.
TrainResult train(const TrainOptions& options, device::Device& device, FileSystem& files) {
  REDLINE_CHECK(!options.config.train.automatic_batch_size, "train.batch_size is \"auto\" still");
  if (!options.team.leads()) return follow_rank_0(options, device, files);
  RunFolder folder(options, files);
  StepLoop loop(options, device, files, folder);
  std::optional<Path> checkpoint;
  try {
    checkpoint = folder.resume(loop);
    if (!checkpoint) loop.load_start();
  } catch (const Interrupted&) {
    folder.tell(
        Note{fmt::format("stopped by signal {} while weights were loaded; nothing was written", options.stop->load())});
    return {Outcome::stopped, loop.step(), {}};
  }
  if (loop.trains()) {
    loop.require_memory();
    folder.begin(loop.documents());
  }
  const RunHeader header = loop.header();
  const std::string name = options.folder.string();
  if (checkpoint)
    folder.tell(Note{fmt::format("resuming after step {} from {}", loop.step(), checkpoint->string())});
  else if (options.resume)
    folder.tell(Note{fmt::format("nothing to resume in {}: starting from the beginning", name)});
  folder.tell(Started{header});
  const model::Fp8Products fp8 = model::fp8_products(options.config);
  const config::Precision& precision = options.config.precision;
  if (!header.fp8.empty() && fp8.taken.empty() && !fp8.head)
    folder.tell(Warning{"precision.matmul is fp8, and no product takes it here: the run goes on in bf16"});
  if (precision.head == "fp8" && precision.matmul != "fp8")
    folder.tell(
        Warning{fmt::format("precision.head = \"fp8\" counts where precision.matmul is fp8; it is {}: the head's "
                            "gradients take that",
                            precision.matmul)});
  if (options.dry_run) {
    folder.tell(Note{checkpoints_in_words(model::state_bytes(loop.lowered().state),
                                          checkpoints_kept(options.config.checkpoint, header.steps))});
    const std::string problem = memory_problem(options.config, header.memory->total, device);
    if (!problem.empty()) folder.tell(Warning{problem});
    return {Outcome::dry_run, loop.step(), {}};
  }
  if (loop.trains()) return loop.run();
  folder.leave_tidy();
  folder.tell(Finished{
      fmt::format("{}: nothing is left to do after {}{}", name, counted(header.steps, "step"), loop.nothing_left())});
  return {Outcome::already_finished, loop.step(), {}};
}

}  // namespace redline::train
