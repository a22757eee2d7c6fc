// Brings values of the host's memory to the nodes that use them, and takes them back, in pairs of copies beside the
// nodes around; and puts the nodes of an update between those of the next step, where its copies hide.
#include <algorithm>
#include <limits>
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
  if (momentum && (operand == "momentum" || operand == "gradients"))
    return stretches_of(momentum->matrices.flat, momentum->matrices.count, momentum->matrices.elements(), element);
  if (muon && (operand == "parameters" || operand == "working"))
    return stretches_of(muon->matrices.flat, muon->matrices.count, muon->matrices.elements(), element);
  if (muon && operand == "row_moments")
    return stretches_of(muon->matrices.by_row, muon->matrices.count, muon->matrices.rows, element);
  return {{0, value.bytes()}};
}

// An operand in the host's memory, and what stands for it on the device while some nodes use it.
struct Staged {
  ValueId far, near = {};
  bool in = false, out = false;
  std::size_t first = 0, last = 0;                      // nodes that use it
  std::int64_t begin = 0;                               // of all of it, in the value that owns its bytes
  std::vector<HostBytes> bytes = {};                    // of it that nodes touch
  std::vector<std::pair<ValueId, ValueId>> parts = {};  // the same of the host's value and of `near`
  std::vector<Node> reads = {};                         // waits for them
  bool written = false;                                 // its copies back were started
  bool meets(const Staged& other) const {
    return std::ranges::any_of(bytes, [&](const HostBytes& a) {
      return std::ranges::any_of(other.bytes, [&](const HostBytes& b) { return a.meets(b); });
    });
  }
};

// Nodes whose values are on the device together: those of a layer on its way there, or on its way back; else one node.
struct Visit {
  std::size_t first = 0;  // node
  std::int32_t layer = kNoLayer;
  bool forward = false;
  std::vector<Staged> operands = {};
};

class StreamPass {
 public:
  StreamPass(ProgramSet& set, Program& program) : set_(set), program_(program) {
    bool forward = false, update = false;
    for (const Node& node : program.nodes) {
      pairs_ = std::max(pairs_, node.pair + 1);
      forward = forward || node.phase == Phase::forward;
      update = update || node.phase == Phase::update;
    }
    if (forward && update) ahead_ = kPiecesAhead;
  }

  void run() {
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) stage(i);
    if (visits_.empty()) return;
    nodes_ = std::exchange(program_.nodes, {});
    program_.nodes.reserve(2 * nodes_.size());
    std::vector<std::vector<Staged*>> first(nodes_.size()), last(nodes_.size());
    for (Visit& visit : visits_)
      for (Staged& s : visit.operands) first[s.first].push_back(&s), last[s.last].push_back(&s);
    read_next();
    for (std::size_t i = 0, v = 0; i < nodes_.size(); ++i) {
      if (v < visits_.size() && visits_[v].first == i) {
        wait_for_writes([&](const Written& w) { return w.visit + 1 + ahead_ <= v; });  // whose memory others take
        if (read_ == v) read_next();
        while (read_ < visits_.size() && read_ <= v + (visits_[read_].layer == kNoLayer ? ahead_ : 1) &&
               !reads_what_is_unwritten(read_))
          read_next();
        ++v;
      }
      for (Staged* const s : first[i]) wait_for(s->reads);
      program_.nodes.push_back(std::move(nodes_[i]));  // its phase and its place stay
      for (Staged* const s : last[i]) write_back(*s, v - 1);
    }
    wait_for_writes([](const Written&) { return true; });
  }

 private:
  // A copy back to the host that nobody waited for yet.
  struct Written {
    std::size_t visit;
    const Staged* of;
    Node wait;
  };

  // Notes the node's operands in the host's memory, and puts others in their place.
  void stage(std::size_t index) {
    Node& node = program_.nodes[index];
    if (std::holds_alternative<ops::Copy<ValueId>>(node.op)) return;
    if (node.when == When::wait) return stage_wait(index);
    std::vector<Staged> operands;
    each_operand(node.op, [&](std::string_view operand, ValueId id, Access access) {
      if (set_.at(id).memory == Memory::device) return;
      auto s = std::ranges::find(operands, id, &Staged::far);
      if (s == operands.end()) s = operands.insert(s, staged(id, index, stretches_of(node.op, operand, set_.at(id))));
      s->in = s->in || access != Access::write;
      s->out = s->out || access != Access::read;
    });
    if (operands.empty()) return;
    if (!joins_last_visit(node, operands)) visits_.push_back({index, node.place.layer, node.phase == Phase::forward});
    std::vector<Staged>& known = visits_.back().operands;
    std::map<ValueId, ValueId> near;
    for (Staged& s : operands) {
      auto k = std::ranges::find(known, s.far, &Staged::far);
      if (k == known.end()) {
        bring_near(s, node);
        k = known.insert(k, std::move(s));
      } else {
        k->in = k->in || (s.in && !k->out);  // what the visit wrote before is there
        k->out = k->out || s.out;
        k->last = index;
      }
      near[k->far] = k->near;
    }
    std::visit(
        [&](auto& op) {
          op = op.map([&](std::string_view, ValueId id, Access) {
            const auto it = near.find(id);
            return it == near.end() ? id : it->second;
          });
        },
        node.op);
    if (node.when == When::start) under_way_[node.pair] = {index, visits_.size() - 1};
  }
  // The other end of a pair has the operands of its start, and holds them until here.
  void stage_wait(std::size_t index) {
    const auto started = under_way_.find(program_.nodes[index].pair);
    if (started == under_way_.end()) return;
    const auto [start, visit] = started->second;
    program_.nodes[index].op = program_.nodes[start].op;
    for (Staged& s : visits_[visit].operands) s.last = index;
  }

  // Nodes of one layer stay together, unless one would write what another has under another name. A pair is alone.
  bool joins_last_visit(const Node& node, const std::vector<Staged>& operands) const {
    if (visits_.empty() || node.place.layer == kNoLayer || node.when != When::now) return false;
    const Visit& last = visits_.back();
    if (last.layer != node.place.layer || last.forward != (node.phase == Phase::forward) ||
        program_.nodes[last.first].when != When::now)
      return false;
    for (const Staged& a : operands)
      for (const Staged& b : last.operands)
        if (a.far != b.far && (a.out || b.out) && a.meets(b)) return false;
    return true;
  }

  Staged staged(ValueId far, std::size_t index, const std::vector<Stretch>& stretches) {
    HostBytes all{far};
    for (; set_.at(all.owner).alias_of.present(); all.owner = set_.at(all.owner).alias_of)
      all.begin += set_.at(all.owner).alias_offset;
    Staged s{.far = far, .first = index, .last = index, .begin = all.begin};
    for (const Stretch& at : stretches)
      s.bytes.push_back({all.owner, all.begin + at.begin, all.begin + at.begin + at.bytes});
    return s;
  }
  void bring_near(Staged& s, const Node& node) {
    Value near = set_.at(s.far);
    near.role = Role::activation;
    near.alias_of = {};
    near.alias_offset = 0;
    near.memory = Memory::device;
    near.place = node.place;
    near.name += " of the host";
    s.near = set_.add(std::move(near));
    for (const HostBytes& bytes : s.bytes) {
      const Stretch at{bytes.begin - s.begin, bytes.end - bytes.begin};
      const bool whole = at.bytes == set_.at(s.far).bytes();
      s.parts.emplace_back(whole ? s.far : part_of(s.far, at), whole ? s.near : part_of(s.near, at));
    }
  }
  ValueId part_of(ValueId of, const Stretch& at) {
    Value part = set_.at(of);
    part.shape = {at.bytes / static_cast<std::int64_t>(size_of(part.dtype))};
    part.alias_of = of;
    part.alias_offset = at.begin;
    return set_.add(std::move(part));
  }

  // Whether a visit reads what one before it has still to write.
  bool reads_what_is_unwritten(std::size_t reader) {
    const auto is_done = [](const Staged& s) { return !s.out || s.written; };
    while (done_ < reader && std::ranges::all_of(visits_[done_].operands, is_done)) ++done_;
    for (std::size_t v = done_; v < reader; ++v)
      for (const Staged& w : visits_[v].operands)
        if (!is_done(w) &&
            std::ranges::any_of(visits_[reader].operands, [&](const Staged& r) { return r.in && r.meets(w); }))
          return true;
    return false;
  }

  // Starts the reads of the next visit that has none yet.
  void read_next() {
    for (Staged& s : visits_[read_++].operands) {
      if (!s.in) continue;
      wait_for_writes([&](const Written& w) { return w.of->meets(s); });
      for (const auto& [far, near] : s.parts) s.reads.push_back(start(nodes_[s.first], far, near, far, "in"));
    }
  }
  void write_back(Staged& s, std::size_t visit) {
    s.written = true;
    if (!s.out) return;
    wait_for_writes([&](const Written& w) { return w.of->meets(s); });
    for (const auto& [far, near] : s.parts)
      written_.push_back({visit, &s, start(nodes_[s.last], near, far, far, "out")});
  }
  template <class Which>
  void wait_for_writes(const Which& which) {
    for (Written& w : written_)
      if (which(w)) program_.nodes.push_back(w.wait);
    std::erase_if(written_, which);
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
  std::vector<Node> nodes_;  // as they were written
  std::vector<Visit> visits_;
  // Single nodes of an update that are read ahead of the one that runs. Where they stand beside a forward pass, one of
  // its products takes as long as the copies of several.
  static constexpr std::size_t kPiecesAhead = 8;
  std::size_t ahead_ = 1;
  std::size_t read_ = 0;  // visits whose reads were started
  std::size_t done_ = 0;  // the first ones, all of whose copies back were started
  std::vector<Written> written_;
  std::map<std::int32_t, std::pair<std::size_t, std::size_t>> under_way_;  // pairs: where one started, and its visit
  std::int32_t pairs_ = 0;
};

// The nodes of a program before which whatever uses the bytes of a value has to be over: the first that uses them at
// all, and the first that writes them. By stretches that have the same ones.
class FirstUses {
 public:
  void note(std::int64_t begin, std::int64_t end, bool writes, std::size_t node) {
    const auto last = cut(end);
    for (auto at = cut(begin); at != last; ++at) {
      at->second.any = std::min(at->second.any, node);
      if (writes) at->second.write = std::min(at->second.write, node);
    }
  }
  std::size_t find(std::int64_t begin, std::int64_t end, bool writes) const {
    std::size_t first = kNone;
    auto at = uses_.upper_bound(begin);
    if (at != uses_.begin()) --at;
    for (; at != uses_.end() && at->first < end; ++at)
      first = std::min(first, writes ? at->second.any : at->second.write);
    return first;
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  struct First {
    std::size_t any = kNone, write = kNone;
  };
  // The stretch that begins there.
  std::map<std::int64_t, First>::iterator cut(std::int64_t where) {
    const auto after = uses_.upper_bound(where);
    return uses_.try_emplace(after, where, after == uses_.begin() ? First{} : std::prev(after)->second);
  }

  std::map<std::int64_t, First> uses_;  // by where a stretch begins; it ends where the next one does
};

class BesidePass {
 public:
  BesidePass(ProgramSet& set, Program& program, std::vector<Node> before)
      : set_(set), program_(program), before_(std::move(before)) {
    for (std::size_t i = 0; i < program.nodes.size(); ++i) note(program.nodes[i], i);
  }

  void run() {
    std::vector<std::size_t> until(before_.size()), order(before_.size());
    std::vector<double> weight(before_.size());
    for (std::size_t j = before_.size(); j-- > 0;) {  // those that later ones wait for are due when these are
      order[j] = j;
      weight[j] = 1 + bytes_on_host(before_[j]);
      until[j] = due(before_[j]);
      note(before_[j], until[j]);
    }
    std::ranges::stable_sort(order, {}, [&](std::size_t j) { return until[j]; });
    const auto pace = [](const Node& node) { return node.phase == Phase::forward ? node.cost.flops : 0; };
    double all = 0, done = 0, all_weight = 0, placed = 0;
    std::int32_t layers = 1;
    for (const Node& node : program_.nodes) all += pace(node), layers = std::max(layers, node.place.layer + 1);
    for (const double w : weight) all_weight += w;
    std::vector<Node> nodes;
    nodes.reserve(program_.nodes.size() + before_.size());
    auto next = order.begin();
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      for (; next != order.end() && (until[*next] <= i || placed / all_weight <= done / all + 1.0 / layers); ++next) {
        placed += weight[*next];
        nodes.push_back(std::move(before_[*next]));
      }
      done += pace(program_.nodes[i]);
      nodes.push_back(std::move(program_.nodes[i]));
    }
    REDLINE_CHECK(next == order.end(), "nodes are left after {}", program_.name);
    program_.nodes = std::move(nodes);
  }

 private:
  template <class F>
  void each_use(const Node& node, F f) const {
    each_operand(node.op, [&](std::string_view operand, ValueId id, Access access) {
      HostBytes all{id};
      for (; set_.at(all.owner).alias_of.present(); all.owner = set_.at(all.owner).alias_of)
        all.begin += set_.at(all.owner).alias_offset;
      for (const Stretch& at : stretches_of(node.op, operand, set_.at(id)))
        f(HostBytes{all.owner, all.begin + at.begin, all.begin + at.begin + at.bytes}, access != Access::read);
    });
  }
  void note(const Node& node, std::size_t until) {
    each_use(node, [&](const HostBytes& bytes, bool writes) {
      uses_[bytes.owner].note(bytes.begin, bytes.end, writes, until);
    });
  }
  std::size_t due(const Node& node) const {
    std::size_t until = program_.nodes.size() - 1;
    each_use(node, [&](const HostBytes& bytes, bool writes) {
      const auto known = uses_.find(bytes.owner);
      if (known != uses_.end()) until = std::min(until, known->second.find(bytes.begin, bytes.end, writes));
    });
    return until;
  }
  double bytes_on_host(const Node& node) const {
    double sum = 0;
    each_use(node, [&](const HostBytes& bytes, bool) {
      if (set_.at(bytes.owner).memory == Memory::host) sum += static_cast<double>(bytes.end - bytes.begin);
    });
    return sum;
  }

  const ProgramSet& set_;
  Program& program_;
  std::vector<Node> before_;
  std::map<ValueId, FirstUses> uses_;
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

void run_beside(ProgramSet& set, Program& program, std::vector<Node> before) {
  BesidePass(set, program, std::move(before)).run();
}

void stream_host_values(ProgramSet& set, Program& program) { StreamPass(set, program).run(); }

}  // namespace redline::program
