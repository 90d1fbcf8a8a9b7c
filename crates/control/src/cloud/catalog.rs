//! What the operator offers, regions, flavors and images; and tenants' key pairs and policies.

use super::{Cloud, CloudError, Draft, Once, Stored};
use crate::keys::OrgName;
use crate::protocol::Image;
use crate::resource::{
    Environment, FlavorResource, FlavorSpec, Global, ImageResource, ImageSpec, Keypair,
    KeypairSpec, PolicyResource, PolicySpec, Region, RegionSpec, Tenant, Time,
};

use super::networks::check_name;

impl Cloud {
    async fn offer<T: Global>(
        &self,
        made: T,
        name: &str,
        once: Option<&Once>,
    ) -> Result<T, CloudError> {
        check_name("name", name)?;
        let mut draft = Draft::new();
        draft.create_global(&made)?;
        draft.take_name::<T>("", name, made.id());
        draft.answer_once(once, 201, &made)?;
        self.commit(draft).await?;
        Ok(made)
    }

    /// Offer it no more. What was made with it stays as it is.
    ///
    /// # Errors
    /// [`CloudError::Stale`].
    pub async fn withdraw<T: Global>(&self, was: &Stored<T>) -> Result<(), CloudError> {
        let mut draft = Draft::new();
        draft.delete(was);
        if let Some(name) = was.value.name() {
            draft.drop_name::<T>("", name);
        }
        self.commit(draft).await?;
        Ok(())
    }

    /// A new region.
    ///
    /// # Errors
    /// [`CloudError::Taken`], [`CloudError::Invalid`].
    pub async fn create_region(
        &self,
        spec: RegionSpec,
        once: Option<&Once>,
    ) -> Result<Region, CloudError> {
        let RegionSpec { name, description, country, fabric, vlans, addresses } = spec;
        if vlans.from == 0 || vlans.to > 4094 || vlans.from > vlans.to {
            let value = format!("{} to {}", vlans.from, vlans.to);
            return Err(CloudError::invalid("vlans", value, "use a range within 1 to 4094"));
        }
        if !(8..=24).contains(&addresses.prefix_len()) {
            let why = "use a prefix of 8 to 24 bits: subnets of 24 bits are cut from it";
            return Err(CloudError::invalid("addresses", addresses.to_string(), why));
        }
        let id = self.new_id().await?;
        let addresses = addresses.trunc();
        let created_at = Time::now();
        let made = Region { id, name, description, country, fabric, vlans, addresses, created_at };
        let name = made.name.to_string();
        self.offer(made, &name, once).await
    }

    /// Delete a region that has no environments and no hosts.
    ///
    /// # Errors
    /// [`CloudError::InUse`].
    pub async fn delete_region(&self, was: &Stored<Region>) -> Result<(), CloudError> {
        let name = &was.value.name;
        let in_use = |by| CloudError::InUse {
            noun: "region",
            which: format!("'{name}'"),
            by,
            instead: "delete that first",
        };
        let environments = self.everything::<Environment>(crate::keys::tenants("environments"));
        if let Some(first) = environments.await?.iter().find(|e| e.value.region == *name) {
            return Err(in_use(format!("environment {}", first.value.id)));
        }
        let hosts = self.store.all(crate::keys::hosts(name)).await?.1;
        if let Some(host) = hosts.first() {
            return Err(in_use(format!("host '{}'", host.key.last())));
        }
        self.withdraw(was).await
    }

    /// A new flavor.
    ///
    /// # Errors
    /// [`CloudError::Taken`], [`CloudError::Invalid`].
    pub async fn create_flavor(
        &self,
        spec: FlavorSpec,
        once: Option<&Once>,
    ) -> Result<FlavorResource, CloudError> {
        if spec.vcpus == 0 || spec.vcpus > 4096 {
            return Err(CloudError::invalid("vcpus", spec.vcpus.to_string(), "use 1 to 4096"));
        }
        if !(64..=1 << 30).contains(&spec.ram_mib) {
            return Err(CloudError::invalid(
                "ram_mib",
                spec.ram_mib.to_string(),
                "use at least 64",
            ));
        }
        for (field, count) in [
            ("gpus.count", spec.gpus.as_ref().map(|gpus| gpus.count)),
            ("vfs.count", spec.vfs.as_ref().map(|vfs| vfs.count)),
        ] {
            if count.is_some_and(|count| !(1..=32).contains(&count)) {
                let value = count.unwrap_or_default().to_string();
                return Err(CloudError::invalid(field, value, "use 1 to 32, or leave it out"));
            }
        }
        let id = self.new_id().await?;
        let name = spec.name.clone();
        self.offer(FlavorResource { id, created_at: Time::now(), spec }, &name, once).await
    }

    /// A new image.
    ///
    /// # Errors
    /// [`CloudError::Taken`], [`CloudError::Invalid`].
    pub async fn create_image(
        &self,
        spec: ImageSpec,
        once: Option<&Once>,
    ) -> Result<ImageResource, CloudError> {
        if let Image::Disk { file, url, sha256, .. } = &spec.source {
            check_file(file)?;
            check_origin(url.as_deref(), sha256.as_deref())?;
        }
        let id = self.new_id().await?;
        let name = spec.name.clone();
        self.offer(ImageResource { id, created_at: Time::now(), spec }, &name, once).await
    }

    async fn own<T: Tenant>(
        &self,
        mut draft: Draft,
        made: T,
        once: Option<&Once>,
    ) -> Result<T, CloudError> {
        let name = made.name().unwrap_or_default().to_owned();
        check_name("name", &name)?;
        draft.create(&made)?;
        draft.take_name::<T>(made.organization().as_str(), &name, made.id());
        draft.answer_once(once, 201, &made)?;
        self.commit(draft).await?;
        Ok(made)
    }

    async fn disown<T: Tenant>(&self, was: &Stored<T>) -> Result<(), CloudError> {
        let mut draft = Draft::new();
        draft.delete(was);
        let name = was.value.name().unwrap_or_default();
        draft.drop_name::<T>(was.value.organization().as_str(), name);
        self.commit(draft).await?;
        Ok(())
    }

    /// A new key pair.
    ///
    /// # Errors
    /// [`CloudError::Taken`], [`CloudError::Invalid`] for what is no public key.
    pub async fn create_keypair(
        &self,
        organization: &OrgName,
        spec: KeypairSpec,
        once: Option<&Once>,
    ) -> Result<Keypair, CloudError> {
        let KeypairSpec { name, environment, public_key } = spec;
        let environment = self.environment(organization, environment).await?;
        let public_key = check_public_key(&public_key)?;
        let mut draft = Draft::new();
        draft.depend(&environment);
        let made = Keypair {
            id: self.new_id().await?,
            name,
            organization: organization.clone(),
            environment: environment.value.id,
            public_key,
            created_at: Time::now(),
        };
        self.own(draft, made, once).await
    }

    /// Give a key pair another name.
    ///
    /// # Errors
    /// [`CloudError::Taken`], [`CloudError::Stale`].
    pub async fn rename_keypair(
        &self,
        was: &Stored<Keypair>,
        name: String,
    ) -> Result<Keypair, CloudError> {
        check_name("name", &name)?;
        let now = Keypair { name, ..was.value.clone() };
        let mut draft = Draft::new();
        draft.change(was, &now)?;
        if now.name != was.value.name {
            let scope = now.organization.as_str();
            draft.drop_name::<Keypair>(scope, &was.value.name);
            draft.take_name::<Keypair>(scope, &now.name, now.id);
        }
        self.commit(draft).await?;
        Ok(now)
    }

    /// Delete a key pair. VMs that were made with it keep its public key.
    ///
    /// # Errors
    /// [`CloudError::Stale`].
    pub async fn delete_keypair(&self, was: &Stored<Keypair>) -> Result<(), CloudError> {
        self.disown(was).await
    }

    /// A new placement policy.
    ///
    /// # Errors
    /// [`CloudError::Taken`].
    pub async fn create_policy(
        &self,
        organization: &OrgName,
        spec: PolicySpec,
        once: Option<&Once>,
    ) -> Result<PolicyResource, CloudError> {
        let made = PolicyResource {
            id: self.new_id().await?,
            name: spec.name,
            organization: organization.clone(),
            policy: spec.policy,
            created_at: Time::now(),
        };
        self.own(Draft::new(), made, once).await
    }

    /// Delete a placement policy. Groups that were made with it stay as they are.
    ///
    /// # Errors
    /// [`CloudError::Stale`].
    pub async fn delete_policy(&self, was: &Stored<PolicyResource>) -> Result<(), CloudError> {
        self.disown(was).await
    }
}

/// A file's name that does not lead out of the images' folder.
fn check_file(file: &str) -> Result<(), CloudError> {
    let fits = (1..=128).contains(&file.len())
        && !file.starts_with('.')
        && file.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let why = "use letters, digits, '.', '_' and '-': it is a name within the images' folder";
    if fits { Ok(()) } else { Err(CloudError::invalid("source.disk.file", file, why)) }
}

/// What is fetched must be known by its hash.
fn check_origin(url: Option<&str>, sha256: Option<&str>) -> Result<(), CloudError> {
    if let Some(sha256) = sha256
        && (sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()))
    {
        return Err(CloudError::invalid("source.disk.sha256", sha256, "use 64 hexadecimal digits"));
    }
    let Some(url) = url else { return Ok(()) };
    if !url.starts_with("https://") && !url.starts_with("http://") {
        return Err(CloudError::invalid("source.disk.url", url, "use https:// or http://"));
    }
    if sha256.is_none() {
        let why = "give its sha256 too: hosts take nothing from elsewhere that they cannot check";
        return Err(CloudError::invalid("source.disk.url", url, why));
    }
    Ok(())
}

/// A line of OpenSSH's `authorized_keys` (sshd(8)): a type, the key in base64, a comment.
fn check_public_key(text: &str) -> Result<String, CloudError> {
    let line = text.trim();
    let mut words = line.split_ascii_whitespace();
    let kind = words.next().unwrap_or_default();
    let known = ["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-"];
    let is_key = words.next().is_some_and(|key| {
        key.len() >= 16 && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b))
    });
    if line.contains(['\n', '\r']) || !is_key || !known.iter().any(|known| kind.starts_with(known))
    {
        let shown: String = line.chars().take(40).collect();
        let why = "use one line as in authorized_keys, as 'ssh-ed25519 AAAA... me@there'";
        return Err(CloudError::invalid("public_key", shown, why));
    }
    Ok(line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_images_file_cannot_lead_out_of_its_folder() {
        for file in ["", "../x", "a/b", ".hidden", "a b", "ä"] {
            assert!(check_file(file).is_err(), "{file}");
        }
        assert!(check_file("debian-12.qcow2").is_ok());
    }

    #[test]
    fn what_is_fetched_must_be_known_by_its_hash() {
        let hash = "0".repeat(64);
        assert!(check_origin(Some("https://images/x"), Some(&hash)).is_ok());
        assert!(check_origin(Some("https://images/x"), None).is_err());
        assert!(check_origin(Some("file:///etc/shadow"), Some(&hash)).is_err());
        assert!(check_origin(None, Some("xyz")).is_err());
        assert!(check_origin(None, None).is_ok());
    }

    #[test]
    fn a_public_key_is_one_line_of_authorized_keys() {
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB me@there";
        assert_eq!(check_public_key(&format!(" {key}\n")).ok().as_deref(), Some(key));
        for text in ["", "ssh-rsa", "hello world", &format!("{key}\n{key}"), "ssh-rsa {};rm"] {
            assert!(check_public_key(text).is_err(), "{text}");
        }
    }
}
