//! A pointer to a record or a version, as the link held it.
//!
//! A link holds the pointer that the allocation gave, which may free all of it. What is made from a reference may not, by the
//! language's rules: the reference covers the header only, and counts what of that has no cell as unchanging. So whoever finds
//! something that it may have to retire or to link anew keeps one of these, and takes [`Linked::pointer`] for that.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

/// See the [module](self). To be read through for `'g`, mostly the time of a guard.
pub(crate) struct Linked<'g, T> {
    pointer: NonNull<T>,
    read: PhantomData<&'g T>,
}

impl<T> Clone for Linked<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Linked<'_, T> {}

impl<'g, T> Linked<'g, T> {
    /// Of what a link held; `None` if that is nothing.
    ///
    /// # Safety
    /// `pointer` is null, or what the allocation of a `T` gave, and the `T` is alive and not borrowed mutably throughout `'g`.
    #[inline]
    pub(crate) unsafe fn new(pointer: *mut T) -> Option<Linked<'g, T>> {
        NonNull::new(pointer).map(|pointer| Linked { pointer, read: PhantomData })
    }

    /// What the link held.
    #[inline]
    pub(crate) fn pointer(self) -> *mut T {
        self.pointer.as_ptr()
    }

    #[inline]
    pub(crate) fn get(self) -> &'g T {
        // SAFETY: `new` was told that it is alive for so long.
        unsafe { self.pointer.as_ref() }
    }
}

impl<T> Deref for Linked<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.get()
    }
}
