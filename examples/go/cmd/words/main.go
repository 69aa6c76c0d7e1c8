// Command words prints the ten most frequent words of its standard input.
package main

import (
	"fmt"
	"os"

	"example.com/words"
)

func main() {
	counts, err := words.Top(os.Stdin, 10)
	if err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(1)
	}
	for _, c := range counts {
		fmt.Println(c.N, c.Word)
	}
}
