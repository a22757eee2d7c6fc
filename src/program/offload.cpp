// Brings values of the host's memory to the nodes that use them, and takes them back, in pairs of copies beside the
// nodes around.
#include <algorithm>
#include <map>
#include <vector>

#include "program/passes.h"
#include "program/program.h"

namespace redline::program {
namespace {

// Bytes of the value that owns them.
struct HostBytes {
  ValueId owner;
  std::int64_t begin = 0, end = 0;
  bool meets(const HostBytes& other) const { return owner == other.owner && begin < other.end && other.begin < end; }
};

// A stretch of an operand, in bytes from its beginning.
struct Stretch {
  std::int64_t begin = 0, bytes = 0;
};

// The stretches of an operand that an op touches: matrices that one node updates lie apart, and what is between them
// belongs to other nodes.
std::vector<Stretch> stretches_of(const optim::Spread& spread, std::int64_t count, std::int64_t elements,
                                  std::int64_t element) {
  std::vector<Stretch> found;
  for (std::int64_t i = 0; i < count; ++i) {
    const Stretch next{spread.at(i) * element, elements * element};
    if (!found.empty() && found.back().begin + found.back().bytes == next.begin)
      found.back().bytes += next.bytes;
    else
      found.push_back(next);
  }
  return found;
}
std::vector<Stretch> stretches_of(const Op& op, std::string_view operand, const Value& value) {
  const auto element = static_cast<std::int64_t>(size_of(value.dtype));
  const auto* const momentum = std::get_if<optim::MuonMomentum<ValueId>>(&op);
  const auto* const muon = std::get_if<optim::Muon<ValueId>>(&op);
  if (momentum && operand == "momentum")
    return stretches_of(momentum->matrices.flat, momentum->matrices.count, momentum->matrices.elements(), element);
  if (muon && operand == "parameters")
    return stretches_of(muon->matrices.flat, muon->matrices.count, muon->matrices.elements(), element);
  if (muon && operand == "row_moments")
    return stretches_of(muon->matrices.by_row, muon->matrices.count, muon->matrices.rows, element);
  return {{0, value.bytes()}};
}

// An operand of a node that lies in the host's memory, and what stands for it on the device.
struct Staged {
  ValueId near;
  bool in = false, out = false;
  std::vector<std::pair<ValueId, ValueId>> parts;  // of the host's value and of `near`
  std::vector<HostBytes> bytes;                    // of the parts
};
struct Visit {
  std::size_t node;
  std::vector<Staged> operands;
};

class StreamPass {
 public:
  StreamPass(ProgramSet& set, Program& program) : set_(set), program_(program) {
    for (const Node& node : program.nodes) pairs_ = std::max(pairs_, node.pair + 1);
  }

  void run() {
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) stage(i);
    if (visits_.empty()) return;
    std::vector<std::vector<Node>> reads(visits_.size()), writes(visits_.size());  // those that nobody waited for yet
    std::size_t read = 0;                                                          // visits whose reads were started
    std::vector<Node> nodes = std::exchange(program_.nodes, {});
    read_ahead(nodes, 0, reads, writes), ++read;
    for (std::size_t i = 0, v = 0; i < nodes.size(); ++i) {
      const bool visited = v < visits_.size() && visits_[v].node == i;
      if (visited) {
        if (v >= 2) wait_for(writes[v - 2]);  // whose memory the next one takes
        if (read == v) read_ahead(nodes, v, reads, writes), ++read;
        if (read == v + 1 && read < visits_.size() && !reads_what_is_written(v + 1, v))
          read_ahead(nodes, v + 1, reads, writes), ++read;
        wait_for(reads[v]);
      }
      program_.nodes.push_back(nodes[i]);
      if (visited) write_back(nodes[i], visits_[v], writes[v]), ++v;
    }
    for (std::vector<Node>& waits : writes) wait_for(waits);
  }

 private:
  // Notes the node's operands in the host's memory, and puts others in their place.
  void stage(std::size_t index) {
    Node& node = program_.nodes[index];
    if (std::holds_alternative<ops::Copy<ValueId>>(node.op)) return;
    Visit visit{index, {}};
    std::map<ValueId, std::size_t> known;
    const Op before = node.op;
    std::visit(
        [&](auto& op) {
          op = op.map([&](std::string_view operand, ValueId id, Access access) {
            if (!id.present() || set_.at(id).memory == Memory::device) return id;
            REDLINE_CHECK(node.when == When::now, "{} is one of a pair, and {} lies in the host's memory",
                          node.full_name(), set_.at(id).name);
            const auto [it, fresh] = known.try_emplace(id, visit.operands.size());
            if (fresh) visit.operands.push_back(staged(id, node, stretches_of(before, operand, set_.at(id))));
            Staged& s = visit.operands[it->second];
            s.in = s.in || access != Access::write;
            s.out = s.out || access != Access::read;
            return s.near;
          });
        },
        node.op);
    if (!visit.operands.empty()) visits_.push_back(std::move(visit));
  }

  Staged staged(ValueId far, const Node& node, const std::vector<Stretch>& stretches) {
    Staged s;
    Value near = set_.at(far);
    near.role = Role::activation;
    near.alias_of = {};
    near.alias_offset = 0;
    near.memory = Memory::device;
    near.place = node.place;
    near.name += " of the host";
    s.near = set_.add(std::move(near));
    HostBytes all{far};
    for (; set_.at(all.owner).alias_of.present(); all.owner = set_.at(all.owner).alias_of)
      all.begin += set_.at(all.owner).alias_offset;
    const bool whole = stretches.size() == 1 && stretches[0].begin == 0 && stretches[0].bytes == set_.at(far).bytes();
    for (const Stretch& at : stretches) {
      s.parts.emplace_back(whole ? far : part_of(far, at), whole ? s.near : part_of(s.near, at));
      s.bytes.push_back({all.owner, all.begin + at.begin, all.begin + at.begin + at.bytes});
    }
    return s;
  }
  ValueId part_of(ValueId of, const Stretch& at) {
    Value part = set_.at(of);
    part.shape = {at.bytes / static_cast<std::int64_t>(size_of(part.dtype))};
    part.alias_of = of;
    part.alias_offset = at.begin;
    return set_.add(std::move(part));
  }

  // Whether a visit would read what another has not written back yet.
  bool reads_what_is_written(std::size_t reader, std::size_t writer) const {
    for (const Staged& r : visits_[reader].operands)
      for (const Staged& w : visits_[writer].operands)
        for (const HostBytes& a : r.bytes)
          if (r.in && w.out && std::ranges::any_of(w.bytes, [&](const HostBytes& b) { return a.meets(b); }))
            return true;
    return false;
  }

  void read_ahead(const std::vector<Node>& nodes, std::size_t v, std::vector<std::vector<Node>>& reads,
                  std::vector<std::vector<Node>>& writes) {
    for (std::size_t earlier = 0; earlier < v; ++earlier)
      if (!writes[earlier].empty() && reads_what_is_written(v, earlier)) wait_for(writes[earlier]);
    for (const Staged& s : visits_[v].operands)
      for (const auto& [far, near] : s.parts)
        if (s.in) reads[v].push_back(start(nodes[visits_[v].node], far, near, far, "in"));
  }
  void write_back(const Node& node, const Visit& visit, std::vector<Node>& writes) {
    for (const Staged& s : visit.operands)
      for (const auto& [far, near] : s.parts)
        if (s.out) writes.push_back(start(node, near, far, far, "out"));
  }

  // Starts a copy and returns the wait for it.
  Node start(const Node& of, ValueId from, ValueId to, ValueId named, std::string_view way) {
    const Op op = ops::Copy<ValueId>{from, to};
    Node node{.op = op,
              .phase = of.phase,
              .cost = cost_of(op, set_.values),
              .name = fmt::format("{}/{}", set_.at(named).name, way),
              .place = of.place};
    node.when = When::start;
    node.pair = pairs_++;
    node.lane = lane_of(op, set_.values);
    Node wait = node.wait();
    program_.nodes.push_back(std::move(node));
    return wait;
  }
  void wait_for(std::vector<Node>& waits) {
    for (Node& wait : waits) program_.nodes.push_back(std::move(wait));
    waits.clear();
  }

  ProgramSet& set_;
  Program& program_;
  std::vector<Visit> visits_;
  std::int32_t pairs_ = 0;
};

// What a layer keeps for its way back, from its last use in the forward pass to its first one after that.
struct Kept {
  ValueId value;
  std::int32_t layer = kNoLayer;
  std::size_t last = 0, next = 0;  // nodes
};

class KeptPass {
 public:
  KeptPass(ProgramSet& set, Program& program, std::int64_t layers) : set_(set), program_(program) {
    for (const Node& node : program.nodes) pairs_ = std::max(pairs_, node.pair + 1);
    find_layers();
    find_kept(layers > 0 ? layers : last_layer_ + 1);
  }

  void run() {
    for (const Kept& kept : kept_) move(kept);
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      for (Node& node : before_[i]) nodes.push_back(std::move(node));
      nodes.push_back(std::move(program_.nodes[i]));
    }
    program_.nodes = std::move(nodes);
  }

 private:
  static bool is_forward(const Node& node) { return node.phase == Phase::forward; }

  // Where the forward pass of each layer begins, and where its way back does.
  void find_layers() {
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      const Node& node = program_.nodes[i];
      if (node.place.layer == kNoLayer) continue;
      (is_forward(node) ? forward_ : back_).try_emplace(node.place.layer, i);
      last_layer_ = std::max(last_layer_, node.place.layer);
    }
  }

  // Values that one of the first layers makes and nothing but its way back uses again. The last two layers are left
  // out: they would come back as soon as they are gone.
  void find_kept(std::int64_t layers) {
    std::map<ValueId, Kept> seen;
    for (std::size_t i = 0; i < program_.nodes.size(); ++i)
      each_operand(program_.nodes[i].op, [&](std::string_view, ValueId id, Access) {
        const ValueId owner = set_.owner(id);
        const Value& value = set_.at(owner);
        if (value.role != Role::activation || value.memory != Memory::device || value.place.layer == kNoLayer) return;
        const auto [it, fresh] = seen.try_emplace(owner, Kept{owner, value.place.layer, i, 0});
        if (is_forward(program_.nodes[i])) {
          it->second.last = i;
        } else if (fresh) {
          it->second.layer = kNoLayer;  // made on the way back
        } else if (it->second.next == 0) {
          it->second.next = i;
        }
      });
    for (const auto& [id, kept] : seen)
      if (kept.layer != kNoLayer && kept.next > 0 && kept.layer < layers && kept.layer + 2 <= last_layer_)
        kept_.push_back(kept);
    std::ranges::stable_sort(kept_, {}, &Kept::last);
  }

  void move(const Kept& kept) {
    const auto copy_of = [&](Memory memory, const char* name) {
      Value copy = set_.at(kept.value);
      copy.memory = memory;
      copy.name += name;
      return set_.add(std::move(copy));
    };
    const ValueId far = copy_of(Memory::host, " on the host"), back = copy_of(Memory::device, " again here");
    // It leaves beside the layer after the one that used it last, and comes back beside the layer whose way back is
    // before its own.
    const std::int32_t used_in = program_.nodes[kept.last].place.layer;
    const auto gone = forward_.find(used_in == kNoLayer ? kept.layer + 2 : used_in + 2);
    const std::size_t end = gone == forward_.end() ? back_.at(last_layer_) : gone->second;
    pair(kept.value, far, Phase::forward, "out", kept.last + 1, std::max(end, kept.last + 1));
    pair(far, back, Phase::backward, "in", std::min(back_.at(kept.layer + 1), kept.next), kept.next);
    std::map<ValueId, ValueId> moved = {{kept.value, back}};
    for (std::size_t i = kept.next; i < program_.nodes.size(); ++i)
      std::visit(
          [&](auto& op) {
            op = op.map([&](std::string_view, ValueId id, Access) { return id.present() ? instead(id, moved) : id; });
          },
          program_.nodes[i].op);
  }
  // The value itself, or a view of what came back.
  ValueId instead(ValueId id, std::map<ValueId, ValueId>& moved) {
    if (const auto it = moved.find(id); it != moved.end()) return it->second;
    const ValueId whole = set_.at(id).alias_of;
    if (!whole.present()) return id;
    const ValueId other = instead(whole, moved);
    if (other == whole) return id;
    Value view = set_.at(id);
    view.alias_of = other;
    return moved[id] = set_.add(std::move(view));
  }

  void pair(ValueId from, ValueId to, Phase phase, std::string_view way, std::size_t begin, std::size_t end) {
    const Op op = ops::Copy<ValueId>{from, to};
    Node node{.op = op,
              .phase = phase,
              .cost = cost_of(op, set_.values),
              .name = fmt::format("{}/{}", set_.at(from).name, way),
              .place = set_.at(from).place};
    node.when = When::start;
    node.pair = pairs_++;
    node.lane = lane_of(op, set_.values);
    Node wait = node.wait();
    before_[begin].push_back(std::move(node));
    before_[end].push_back(std::move(wait));
  }

  ProgramSet& set_;
  Program& program_;
  std::map<std::int32_t, std::size_t> forward_, back_;
  std::int32_t last_layer_ = kNoLayer, pairs_ = 0;
  std::vector<Kept> kept_;
  std::map<std::size_t, std::vector<Node>> before_;
};

}  // namespace

void keep_on_host(ProgramSet& set, Program& program, std::int64_t layers) { KeptPass(set, program, layers).run(); }

void stream_host_values(ProgramSet& set, Program& program) { StreamPass(set, program).run(); }

}  // namespace redline::program
