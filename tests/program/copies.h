// A program whose state lies in the host's memory: it comes to the device beside other nodes, is updated, and goes
// back; and a copy that is under way from one program to another.
#pragma once

#include <vector>

#include "program/builder.h"
#include "program/executor.h"
#include "program/planner.h"

namespace redline::program {

struct Streamed {
  ProgramSet set;
  ValueId state, one, near;
  std::int64_t size;

  // state += 1, and a sum of ones beside each copy.
  explicit Streamed(std::int64_t elements, DType type = DType::f32) : size(elements) {
    Writer w(set);
    state = w.declare("state", {size}, type, Role::moment, Memory::host);
    one = w.declare("one", {size}, type, Role::input);
    w.begin("step", {.compute = type});
    near = w.activation("near", {size});
    const ValueId c = w.activation("c", {size}), sum = w.activation("sum", {size});
    const auto add = [&](ValueId x, ValueId y, ValueId to, const char* name) {
      w.append(ops::Add<ValueId>{x, y, to}, Phase::update, name);
    };
    const std::int32_t in = w.start(ops::Copy<ValueId>{state, near}, Phase::update, "state/in");
    add(one, one, c, "c");
    w.wait(in);
    add(near, one, sum, "sum");
    const std::int32_t out = w.start(ops::Copy<ValueId>{sum, state}, Phase::update, "state/out");
    add(c, one, c, "c again");
    w.wait(out);
    w.end();
    plan_memory(set);
  }

  // The state after some runs.
  std::vector<float> after(int runs, device::Device& device, const ExecutorOptions& options = {}) const {
    const auto executor = make_executor(set, device, options);
    executor->write(one, std::vector<float>(static_cast<std::size_t>(size), 1.0f));
    for (int i = 0; i < runs; ++i) {
      executor->poison_transients();
      executor->run("step");
    }
    std::vector<float> out(static_cast<std::size_t>(size));
    executor->read(state, out);
    return out;
  }
};

// A copy of state that is under way while another program runs, and a change of the state's end that waits for it.
struct Kept {
  static constexpr std::int64_t kElements = 16 << 20, kChanged = 1000;
  ProgramSet set;
  ValueId state, copy, end, change;

  explicit Kept(Memory memory) {
    Writer w(set);
    state = w.declare("state", {kElements}, DType::f32, Role::moment);
    end = w.view(state, "end", {kChanged}, 4 * (kElements - kChanged));
    change = w.declare("change", {kChanged}, DType::f32, Role::input);
    copy = w.declare("copy", {kElements}, DType::f32, Role::snapshot, memory);
    w.begin("copy", {});
    w.start(ops::Copy<ValueId>{state, copy}, Phase::update, "copy");
    w.program().nodes.back().lane = Lane::to_host;
    w.program().across = true;
    Program kept{.name = "kept", .nodes = {w.program().nodes.back().wait()}, .across = true};
    w.end();
    set.programs.push_back(std::move(kept));
    w.begin("change", {});
    w.append(ops::Add<ValueId>{change, change, end}, Phase::update, "change");
    w.end();
    plan_memory(set);
  }

  // The ends of the copy and of the state after each of some rounds, of which each has twice the number before it.
  std::vector<float> rounds(int count, device::Device& device, const ExecutorOptions& options = {}) const {
    const auto executor = make_executor(set, device, options);
    executor->begin_snapshots();
    if (!executor->has_snapshots()) return {};
    std::vector<float> seen, all(kElements);
    for (int i = 1; i <= count; ++i) {
      executor->write(change, std::vector<float>(kChanged, static_cast<float>(i)));
      executor->run("copy");
      executor->run("kept");
      executor->run("change");
      executor->wait("copy");
      executor->read(copy, all);
      seen.push_back(all.back());
      executor->read(state, all);
      seen.push_back(all.back());
    }
    return seen;
  }
};

}  // namespace redline::program
