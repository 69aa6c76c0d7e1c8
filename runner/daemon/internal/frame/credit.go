package frame

import "sync"

// Allowance is how much input a client may still send. The zero Allowance allows nothing.
type Allowance struct {
	mu     sync.Mutex
	wake   sync.Cond
	n      int
	closed bool
}

// Add allows n bytes more.
func (a *Allowance) Add(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n += n
	a.signal()
}

// Take waits until something is allowed and takes at most n of it; 0 after Close.
func (a *Allowance) Take(n int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.n == 0 && !a.closed {
		a.wake.L = &a.mu
		a.wake.Wait()
	}
	if a.closed {
		return 0
	}
	n = min(n, a.n)
	a.n -= n
	return n
}

// Close ends all waiting.
func (a *Allowance) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.signal()
}

func (a *Allowance) signal() {
	a.wake.L = &a.mu
	a.wake.Broadcast()
}
