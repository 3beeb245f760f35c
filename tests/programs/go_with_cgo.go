// Builds lists and a map of its own heap again and again, beside C's heap, and checks them all.
package main

/*
#include <stdlib.h>
#include <string.h>
static unsigned char *filled(size_t n, int with) { return memset(malloc(n), with, n); }
static int is_filled(const unsigned char *at, size_t n, int with) {
    for (size_t i = 0; i < n; i++)
        if (at[i] != (unsigned char)with)
            return 0;
    return 1;
}
*/
import "C"

import (
	"fmt"
	"os"
	"time"
	"unsafe"
)

type node struct {
	next *node
	key  uint64
	text string
}

func main() {
	const ofC = 48 << 20
	theirs := C.filled(ofC, 7)
	for round := uint64(0); round < 6; round++ {
		var head *node
		byKey := make(map[uint64]*node)
		for key := uint64(0); key < 300000; key++ {
			head = &node{head, key, fmt.Sprint("node ", key*7919+round)}
			if key%3 == 0 {
				byKey[key] = head
			}
		}
		if round == 5 {
			time.Sleep(6 * time.Second)
		}
		for at := head; at != nil; at = at.next {
			wrong := at.text != fmt.Sprint("node ", at.key*7919+round)
			if wrong || at.key%3 == 0 && byKey[at.key] != at {
				fmt.Println("wrong", round, at.key, at.text)
				os.Exit(1)
			}
		}
	}
	if C.is_filled(theirs, ofC, 7) == 0 {
		fmt.Println("C's memory is wrong")
		os.Exit(1)
	}
	C.free(unsafe.Pointer(theirs))
	fmt.Println("ok")
}
