// The program.
#include "cli/app.h"

int main(int argc, char** argv) { return redline::cli::run(argc, argv); }
