/*
 * A setuid program that is linked with the library: tells what of it is there. Ends with status 77
 * where it has no more rights than its caller.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static int threads(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));)
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* Open files in a directory. (Terrace's own are in a table of its threads.) */
static int open_files_in(const char *directory) {
    char path[600], target[1000];
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task, *file; tasks && (task = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/self/task/%s/fd", task->d_name);
        DIR *files = opendir(path);
        while (files && (file = readdir(files))) {
            ssize_t length = readlinkat(dirfd(files), file->d_name, target, sizeof target - 1);
            target[length < 0 ? 0 : length] = 0;
            count += strncmp(target, directory, strlen(directory)) == 0;
        }
        if (files)
            closedir(files);
    }
    return count;
}

int main(int count, char **words) {
    if (!getauxval(AT_SECURE))
        return 77;
    size_t bytes = (size_t)200 << 20;
    char *memory = malloc(bytes), *more = malloc(1000);
    memset(memory, 1, bytes);
    sleep(1);
    printf("threads %d, files %d\n", threads(), open_files_in(count > 1 ? words[1] : "?"));
    free(more);
    return memory[bytes / 2] != 1;
}
