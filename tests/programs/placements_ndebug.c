/* placements.c as a release build. */
#define NDEBUG
#include "placements.c"
