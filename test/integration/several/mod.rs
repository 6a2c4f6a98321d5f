//! Two and three drivers alive on one export, each with an NFS client of its own: as replicas are while a lease moves,
//! as the controllers of several clusters are, and as one is that was frozen and wakes up.

mod chaos;
mod claims;
mod clients;
mod copies;
mod late;
mod readers;
mod sources;
mod told;
mod trash;
mod volumes;
mod work;
