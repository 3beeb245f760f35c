// A static Go program that is attached to while it works: records with checksums in a map, garbage,
// memory given back to the kernel.
// attached SECONDS [told]: prints "ready", then at its end "checks N wrong N"; status 1 if anything
// was wrong. "told" ends when its input does.
package main

import (
	"fmt"
	"hash/crc32"
	"io"
	"math/rand"
	"os"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"
)

type record struct {
	data []byte
	sum  uint32
}

func made() *record {
	data := make([]byte, 200+rand.Intn(4000))
	for i := range data {
		data[i] = byte(i / 64)
	}
	data[rand.Intn(len(data))] = byte(rand.Intn(256))
	return &record{data, crc32.ChecksumIEEE(data)}
}

func main() {
	seconds, err := strconv.Atoi(os.Args[1])
	if err != nil {
		os.Exit(2)
	}
	records := map[int]*record{}
	for i := 0; i < 30000; i++ {
		records[i] = made()
	}
	fmt.Println("ready")
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	var isTold atomic.Bool
	if len(os.Args) > 2 {
		go func() {
			io.Copy(io.Discard, os.Stdin)
			isTold.Store(true)
		}()
	}
	goesOn := func() bool { return time.Now().Before(end) && !isTold.Load() }
	done := make(chan int)
	for g := 0; g < 3; g++ {
		go func() {
			kept := 0
			for goesOn() {
				garbage := make([]byte, 1<<19)
				for i := 0; i < len(garbage); i += 4096 {
					garbage[i] = 1
				}
				kept += len(garbage)
				time.Sleep(5 * time.Millisecond)
			}
			done <- kept
		}()
	}
	checks, wrong := 0, 0
	look := func(key int) {
		checks++
		if crc32.ChecksumIEEE(records[key].data) != records[key].sum {
			wrong++
		}
	}
	for goesOn() {
		for i := 0; i < 50; i++ {
			key := rand.Intn(1000)
			if i == 0 {
				key = rand.Intn(len(records))
			}
			look(key)
			if i%5 == 0 {
				records[key] = made()
			}
		}
		if rand.Intn(400) == 0 {
			debug.FreeOSMemory()
		}
		time.Sleep(2 * time.Millisecond)
	}
	for g := 0; g < 3; g++ {
		<-done
	}
	for key := range records {
		look(key)
	}
	fmt.Println("checks", checks, "wrong", wrong)
	if wrong != 0 {
		os.Exit(1)
	}
}
