/* A library with thread-local variables that throws and catches. Loaded many times over, each time
 * from a file of its own. */
#include <stdexcept>
#include <string>

static thread_local int number = 7;
static thread_local std::string text = "a text that is too long to lie in the string itself";
static thread_local char room[3000];

extern "C" int tls_library_check(int round) {
    try {
        if (number != 7 + round || text.size() < 40 || room[2999] != (round ? 1 : 0))
            return 1;
        throw std::runtime_error(text);
    } catch (const std::exception &caught) {
        number++;
        room[2999] = 1;
        return caught.what() == text ? 0 : 2;
    }
}
