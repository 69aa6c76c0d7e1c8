// Package snapshottest is what a driver of package snapshot has to do: cases ([Run]), random work compared with a model
// ([Random]), processes killed at random moments ([Kill]) and filesystems that are full ([Full]). Both drivers' tests
// run it, with [Main] as their TestMain, on whatever filesystem TMPDIR lies on or on images of their own ([OnImage]).
//
// The model of Random is a plain directory that everything is done to as well. An overlay is no plain directory; what
// may differ is this and nothing else:
//
//	hard links of sealed files   the link breaks at the first write through one of the names, or when one of them is
//	                             renamed or linked again (index=off); Harness.LinksBreak has the model do the same
//	rename of sealed directories EXDEV where overlayfs keeps its marks in user.overlay.* (without privileges)
//	link of a sealed file        has the number of another inode until the next mount (without privileges)
//	hard links in the workspace  past a promote of some of a file's names, older checkpoints show files of their own
//	nlink of directories         always 1 when merged, and not compared
//	nlink of files               may count names that are hidden; groups of names are compared, not counts
//	times of last change         compared with the model only where they were set; before and after a seal, rollback,
//	                             fork, squash or reopening, a view is compared with itself to the nanosecond
//
// Archives and promotes have no sockets.
package snapshottest
