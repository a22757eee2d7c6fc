// Checks the promises of the planner on its result: places of values by their lifetimes, and pairs of nodes.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "program/planner.h"
#include "program/program.h"

namespace redline::program {
namespace plan_checks {

// Bytes of the value that owns them: two nodes may work on two parts of one array at a time.
struct Bytes {
  ValueId owner;
  std::int64_t begin = 0, end = 0;
  bool meets(const Bytes& other) const { return owner == other.owner && begin < other.end && other.begin < end; }
  bool operator==(const Bytes&) const = default;
};
inline Bytes bytes_of(const ProgramSet& set, ValueId id) {
  Bytes bytes{id, 0, set.at(id).bytes()};
  for (; set.at(bytes.owner).alias_of.present(); bytes.owner = set.at(bytes.owner).alias_of) {
    bytes.begin += set.at(bytes.owner).alias_offset;
    bytes.end += set.at(bytes.owner).alias_offset;
  }
  return bytes;
}

// The bytes that a node reads and writes.
struct Touched {
  std::vector<Bytes> read, written;
  Touched(const ProgramSet& set, const Node& node) {
    each_operand(node.op, [&](std::string_view, ValueId id, Access access) {
      if (access != Access::write) read.push_back(bytes_of(set, id));
      if (access != Access::read) written.push_back(bytes_of(set, id));
    });
  }
  bool operator==(const Touched&) const = default;
};
inline bool meets(const std::vector<Bytes>& a, const std::vector<Bytes>& b) {
  return std::ranges::any_of(
      a, [&](const Bytes& x) { return std::ranges::any_of(b, [&](const Bytes& y) { return x.meets(y); }); });
}

// Under another name: an operand that is updated is one. Kernels read while they write.
inline bool writes_what_it_reads(const ProgramSet& set, const Node& node) {
  if (std::visit(
          []<class Op>(const Op&) {
            return requires { Op::kInPlace; };
          },
          node.op))
    return false;
  std::set<ValueId> read, written;
  each_operand(node.op, [&](std::string_view, ValueId id, Access access) {
    (access == Access::read ? read : written).insert(set.owner(id));
  });
  return std::ranges::any_of(read, [&](ValueId id) { return written.contains(id); });
}

// Between the two ends of a pair no other node writes what it reads or touches what it writes.
inline void check_pairs(const ProgramSet& set, const Program& program, std::vector<std::string>& faults) {
  const auto fault = [&](const Node& node, std::string_view what) {
    faults.push_back(fmt::format("{}: {} {}", program.name, node.full_name(), what));
  };
  std::map<std::int32_t, std::pair<const Node*, Touched>> under_way;
  for (const Node& node : program.nodes) {
    const Touched touched(set, node);
    if (node.when == When::wait) {
      const auto started = under_way.find(node.pair);
      if (started == under_way.end())
        fault(node, "waits for what was not started");
      else if (started->second.second != touched)
        fault(node, "does not list the operands of its start");
      under_way.erase(node.pair);
      continue;
    }
    for (const auto& [pair, work] : under_way) {
      const auto& [start, busy] = work;
      if (meets(touched.written, busy.read))
        fault(node, fmt::format("writes what {} reads meanwhile", start->full_name()));
      if (meets(touched.written, busy.written) || meets(touched.read, busy.written))
        fault(node, fmt::format("touches what {} writes meanwhile", start->full_name()));
    }
    if (node.when == When::start && !under_way.emplace(node.pair, std::pair(&node, touched)).second)
      fault(node, "starts a pair that is under way");
  }
  for (const auto& [pair, work] : under_way) fault(*work.first, "is started and nobody waits for it");
}

}  // namespace plan_checks

// One sentence for each fault of a planned set: a node that reads what nothing has written, two values alive at the
// same time in the same bytes, or a pair whose work meets what stands between its ends. Empty when there is none.
inline std::vector<std::string> check_plan(const ProgramSet& set) {
  using namespace plan_checks;
  std::vector<std::string> faults;
  for (const Program& program : set.programs) {
    if (!program.across) check_pairs(set, program, faults);
    for (const Node& node : program.nodes) {
      if (writes_what_it_reads(set, node))
        faults.push_back(fmt::format("{}: {} writes what it reads", program.name, node.full_name()));
      if (std::holds_alternative<ops::Copy<ValueId>>(node.op)) continue;
      each_operand(node.op, [&](std::string_view operand, ValueId id, Access) {
        if (set.at(id).memory != Memory::device)
          faults.push_back(fmt::format("{}: {} computes with {} ({}) in the host's memory", program.name,
                                       node.full_name(), operand, set.at(id).full_name()));
      });
    }
    std::set<ValueId> written;
    for (const Node& node : program.nodes) {
      each_operand(node.op, [&](std::string_view operand, ValueId id, Access access) {
        const ValueId whole = set.owner(id);
        if (access != Access::write && !persistent(set.at(whole).role) && !written.contains(whole))
          faults.push_back(fmt::format("{}: {} reads {} ({}), which nothing has written", program.name,
                                       node.full_name(), operand, set.at(id).full_name()));
      });
      each_operand(node.op, [&](std::string_view, ValueId id, Access access) {
        if (access != Access::read) written.insert(set.owner(id));
      });
    }
    const std::vector<Lifetime> values = lifetimes(set, program);
    for (std::size_t i = 0; i < values.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (!values[i].overlaps(values[j]) || set.at(values[i].value).memory != set.at(values[j].value).memory)
          continue;
        const auto offset = [&](const Lifetime& l) {
          return set.memory.offsets[static_cast<std::size_t>(l.value.index)];
        };
        const auto end = [&](const Lifetime& l) { return offset(l) + set.at(l.value).bytes(); };
        if (offset(values[i]) < end(values[j]) && offset(values[j]) < end(values[i]))
          faults.push_back(fmt::format("{}: {} and {} are alive together in the same memory", program.name,
                                       set.at(values[i].value).full_name(), set.at(values[j].value).full_name()));
      }
    }
  }
  return faults;
}

}  // namespace redline::program
