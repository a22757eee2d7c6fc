// The way back: turns the forward pass that stands in a program into gradients.
#pragma once

#include "program/writer.h"

namespace redline::program {

// Appends the backward pass of the program being written, in reverse, down to the gradients of all parameters.
void append_backward(Writer& writer);

}  // namespace redline::program
