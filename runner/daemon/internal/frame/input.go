package frame

import "sync"

// Input is what a command reads: what clients send, in the order in which it comes. It is bounded because each client has
// a window.
type Input struct {
	mu     sync.Mutex
	wake   sync.Cond
	chunks []chunk
	end    error // nil: there is more to come
}

type chunk struct {
	data  []byte
	taken func(n int)
}

// NewInput returns an empty Input.
func NewInput() *Input {
	in := &Input{}
	in.wake.L = &in.mu
	return in
}

// Push appends data, which it keeps, and never waits. taken is told as it is read, so that the client may send more; it
// must not wait either.
func (in *Input) Push(data []byte, taken func(n int)) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.end == nil && len(data) > 0 {
		in.chunks = append(in.chunks, chunk{data, taken})
		in.wake.Broadcast()
	}
}

// Close lets what was sent before be read; then comes the end, the first that was given.
func (in *Input) Close(end error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.end == nil {
		in.end = end
	}
	in.wake.Broadcast()
}

func (in *Input) Read(p []byte) (int, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.chunks) == 0 {
		if in.end != nil {
			return 0, in.end
		}
		in.wake.Wait()
	}
	c := &in.chunks[0]
	n := copy(p, c.data)
	c.taken(n)
	if c.data = c.data[n:]; len(c.data) == 0 {
		in.chunks[0] = chunk{}
		in.chunks = in.chunks[1:]
	}
	return n, nil
}
