// Passes over programs. Each has a file of its own: backward.cpp, fp8.cpp, recompute.cpp, round_gradients.cpp,
// copies.cpp, distribute.cpp and offload.cpp. The first three turn a forward pass into a training program, in this
// order; the others work on finished programs.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/shards.h"
#include "dist/sharing.h"
#include "ops/fp8.h"
#include "ops/lm_loss.h"
#include "program/program_set.h"

namespace redline::program {

class Writer;

// Appends the backward pass of the program being written, in reverse, down to the gradients of all parameters.
void append_backward(Writer& writer);

// Products in eight bits (ops/fp8.h). A node whose result such a product reads writes it in eight bits as well, or
// instead where no other node reads it. Where that node cannot, a separate node casts.

// A tensor's scale, and where its largest magnitude is recorded.
struct Fp8Entry {
  ValueId scale, amax;
};

// The persistent values of one linear, and which of its products are in eight bits.
struct Fp8Linear {
  bool output = false, input_grad = false, weight_grad = false;
  // Copies of the weight, where a product reads them. Where there are rows alone, as where ranks send them to each
  // other, the pass has a program turn them over before the product that reads columns.
  ValueId weight_rows, weight_columns, weight_scale;
  Fp8Entry x, dy;
};

struct Fp8Linears {
  std::map<ValueId, Fp8Linear> by_weight;
  ValueId head_weight;  // absent: the head's gradients take the operands of its logits
  // Their persistent values; x and dlogits belong to a program, and so does the weight's copy where it is absent here.
  ops::HeadInFp8<ValueId> head;
  // Scales that follow from a norm's weights instead of records. The pass finds them.
  struct NormBound {
    ValueId weight;
    bool one_plus = false;
  };
  std::map<ValueId, NormBound> bounds;  // by scale
  bool fast_sums = true;                // of outputs (ops/how.h)
};

// The copies in eight bits that an op writes of one result.
struct Fp8Written {
  ValueId rows, columns;  // either may be absent
  ValueId scale;
  ValueId any() const { return rows.present() ? rows : columns; }
};
void each_fp8_copy(const Node& node, const std::function<void(const Fp8Written&)>& visit);

// Rewrites the products of the program that the writer holds.
void products_in_fp8(Writer& writer, Fp8Linears& linears);

// Recompute trades time for memory: values that a layer's backward pass needs are computed again just before it,
// instead of kept since the forward pass. The same nodes run on the same operands, so gradients have the same bits
// wherever kernels repeat.

enum class Recompute : std::uint8_t {
  none,
  mlp,    // the product before SwiGLU and SwiGLU itself, or whatever ops say is the widest (ops/how.h)
  rest,   // all of a layer but the residual stream that enters it and what attention over pairs gives
  block,  // all of a layer but the residual stream that enters it
};

// Rewrites a program that has its backward pass, the first `layers` of it; 0: all. The last layer stays as it is: its
// backward pass comes at once, so nothing would be saved. First layers are kept longest, and their copies come when
// later layers have left their memory.
void recompute(ProgramSet& set, Program& program, Recompute what, std::int64_t layers = 0);

// What the first `layers` keep for their way back (0: all layers) lies in the host's memory meanwhile: it leaves beside
// the layer that follows, and comes back a layer ahead of its use. For a program that has its backward pass, and has
// been through recompute().
void keep_on_host(ProgramSet& set, Program& program, std::int64_t layers = 0);

// Values in the host's memory reach the nodes that use them through the device's: each node, or all nodes of a layer on
// its way there or back, get a value of their own there, which a pair of copies fills while the ones before compute,
// and another takes back while the next ones do. So the values of three nodes or layers are on the device at a time.
// What a node skips of its operand is not copied.
void stream_host_values(ProgramSet& set, Program& program);

// Puts nodes that would run before a program between its own: each before the first node that would see the difference,
// a layer ahead of that, and else at the pace of the forward pass. Results are the same, and copies of the host's
// values that the nodes use hide beside the forward pass. For a program that has not been through
// stream_host_values().
void run_beside(ProgramSet& set, Program& program, std::vector<Node> before);

// Gradients in bf16 (optim/rounded.h): nodes of a micro-step write values of their own instead of views of `all`,
// which is a name only and has no memory, and others round these into what is kept, onto what is there with
// `accumulate`.
struct RoundedGradients {
  ValueId all, kept;  // [N] f32 and bf16
  ValueId step_state;
};
void round_gradients(ProgramSet& set, Program& program, const RoundedGradients& of, bool accumulate);

// Working copies of weights that no product of training reads, since all of theirs are in eight bits: they have no
// memory between programs. What an update writes lives until its casts have read it; a program that reads others makes
// them from the masters just before.
struct MadeCopies {
  ValueId all;      // [N]: a name only, which has no memory
  ValueId masters;  // [N] f32
};
void make_copies(ProgramSet& set, Program& program, const MadeCopies& of);

// Distribution of a step over many ranks: the pass inserts collectives. The model and its builder know nothing of it.
//   ddp    gradients are added up in buckets, each as soon as the backward pass has written it
//   zero1  the same, to each part's owner only; weights come from their owners before they are first used
//   fsdp   weights of a unit are there from one unit before its use until its last use, and again on the way back;
//          gradients of a unit are added up into their owners' shards, and forgotten
// Where the state has several copies (Sharing::shards), all of that happens among the holders of each, and once a step
// gradients are added up between copies, an even slice of each unit by every holder.
// Weights of products in eight bits travel in eight bits. Every collective is a pair of nodes, so that it travels while
// other nodes compute. In every mode, the totals that decide an update are added up over the ranks, and scales of
// operands in eight bits follow what any rank has seen. Exchanges between the ranks of a row stand in the program
// already (Builder::attention) and become pairs as well.

struct Distribution {
  dist::Sharing sharing;
  Shards shards;  // of the flat arrays, among the holders of a copy
  struct Unit : Range {
    bool kept = false;  // fsdp: small enough to stay from its first use to its last
  };
  std::vector<Unit> units;  // travel one at a time; in order, together all of the flat arrays
  // A flat array whose views nodes use, with an element for each of the parameters' in a range. In fsdp it is a name
  // only: no node of a finished program uses it, and it has no memory; `shard` is this rank's part of it.
  struct Array {
    ValueId all, shard;
    Range range;
  };
  Array weights, gradients;
  Array fp8_weights;               // by rows, where products take them and ranks have parts of the weights; else absent
  std::vector<ValueId> sums = {};  // of a step: the update adds them up over ranks
};

// The collectives that a program needs.
struct Collectives {
  // zero1: at its beginning, from their owners, all of them or, beside weights in eight bits, those that it uses. fsdp
  // gathers wherever it uses any.
  bool gather_weights = false;
  bool reduce_gradients = false;  // they are complete at its end and are added up
  bool accumulate = false;        // fsdp: onto what the shards hold
  bool complete = false;          // fsdp: it is the step's last one, after which copies of the state add up theirs
};

void distribute(ProgramSet& set, Program& program, const Distribution& d, const Collectives& collectives);

// A program that only gathers weights from their owners: for zero1, where weights are used between steps.
Program gather_weights(ProgramSet& set, std::string name, const Distribution& d);

// In ddp and zero1 gradients travel in ranges of whole units with at least so many elements. This is large enough for a
// network's full rate, and small enough that most ranges travel while others are computed. A collective takes a hop for
// every rank, so that many ranks need larger ranges.
constexpr std::int64_t bucket_elements(int ranks) { return 40'000'000 * std::max<std::int64_t>(1, ranks / 64); }

}  // namespace redline::program
