// Package journal makes a promote all or nothing. A plan on disk names every rename before the first is done, with what
// was there and what is to come. As PlanFile it means: not yet; whatever was done is undone. Renamed to DoneFile it
// means: irrevocable; what is left is to clean up. What has happened is found out from inode numbers, so that undoing
// can itself be cut short and repeated.
package journal
