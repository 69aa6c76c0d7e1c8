package runner

import (
	"testing"

	"github.com/caisson-dev/caisson/quota/disk"
)

func TestCrowds(t *testing.T) {
	for _, test := range []struct {
		then, now disk.Usage
		want      bool
	}{
		{disk.Usage{}, disk.Usage{Used: 30, Limit: 100}, false},
		{disk.Usage{}, disk.Usage{Used: 34, Limit: 100}, true}, // a copy would leave a third
		{disk.Usage{Used: 60}, disk.Usage{Used: 70, Limit: 100}, false},
		{disk.Usage{Used: 60}, disk.Usage{Used: 90, Limit: 100}, true},
		{disk.Usage{Used: 60}, disk.Usage{Used: 50, Limit: 100}, false}, // the task has removed something
		{disk.Usage{}, disk.Usage{Used: 1, Limit: 100, Inodes: 400, InodeLimit: 500}, true},
		{disk.Usage{Inodes: 390}, disk.Usage{Used: 1, Limit: 100, Inodes: 400, InodeLimit: 500}, false},
		{disk.Usage{}, disk.Usage{Used: 1, Limit: 100, Inodes: 400}, false}, // no limit
	} {
		if got := crowds(&test.then, &test.now); got != test.want {
			t.Errorf("%+v, %+v: %v", test.then, test.now, got)
		}
	}
}
